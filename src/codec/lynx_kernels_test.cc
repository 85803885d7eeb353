// Every kernel table of `lynx` against the reference, slot by slot: the same bytes on every target of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "base/random.h"
#include "codec/lynx_kernels.h"
#include "codec/lynx_reference.h"

namespace lynx::testing {
namespace {

struct Sizes {
  int tokens, channels;
};
constexpr Sizes kSizes[] = {{1, 1}, {3, 7}, {256, 64}, {252, 128}, {17, 33}, {100, 80}, {256, 32}, {2, 576}};

class LynxKernelsTest : public ::testing::TestWithParam<const CodecKernels*> {
 protected:
  const LynxKernels& reference_ = kReferenceLynxKernels;
  const LynxKernels& kernels_ = *GetParam()->lynx;
};

std::vector<float> Rows(const Sizes& sizes, Random* random) {
  std::vector<float> rows;
  for (int i = 0; i < sizes.tokens * sizes.channels; ++i) {
    rows.push_back(float((random->Unit() - 0.5) * (i % 7 == 0 ? 50.0 : 3.0)) * float(i % 5));
  }
  return rows;
}

TEST_P(LynxKernelsTest, CoderGivesTheSameWordsAndSymbols) {
  for (const Sizes& sizes : kSizes) {
    Random random(std::uint64_t(sizes.tokens * 1000 + sizes.channels));
    const std::size_t count = std::size_t(sizes.tokens * sizes.channels);
    std::vector<const LynxTable*> tables;
    for (int c = 0; c < sizes.channels; ++c) tables.push_back(&LynxTables::Get()[int(random.Below(kLynxTables))]);
    const RansPage page{sizes.tokens, sizes.channels, tables.data()};
    std::vector<std::uint8_t> symbols(count), decoded(count, 99);
    for (std::size_t i = 0; i < count; ++i) {
      // Now and then a symbol that its table thinks improbable.
      symbols[i] = random.Below(50) == 0 ? std::uint8_t(random.Below(kLynxSymbols))
                                         : tables[i % std::size_t(sizes.channels)]->symbol[random.Below(4096)];
    }
    std::vector<std::uint16_t> carried, back(std::size_t(RansLanesOf(sizes.channels)));
    for (std::size_t i = 0; i < back.size(); ++i) carried.push_back(std::uint16_t(random.Next()));
    std::vector<std::uint16_t> expected(kRansSlackWords + count), words(expected.size());
    RansStates expected_states{}, states{};
    const auto* expected_first =
        reference_.rans_encode(page, symbols.data(), carried, expected.data() + expected.size(), &expected_states);
    const auto* first = kernels_.rans_encode(page, symbols.data(), carried, words.data() + words.size(), &states);
    ASSERT_EQ(words.data() + words.size() - first, expected.data() + expected.size() - expected_first);
    const std::size_t bytes = 2 * std::size_t(words.data() + words.size() - first);
    EXPECT_EQ(std::memcmp(first, expected_first, bytes), 0);
    EXPECT_EQ(states, expected_states);

    const std::vector<std::byte> stream(reinterpret_cast<const std::byte*>(first),
                                        reinterpret_cast<const std::byte*>(first) + bytes);
    std::size_t used = 0;
    ASSERT_TRUE(kernels_.rans_decode(page, states, stream, decoded.data(), back, &used).ok());
    EXPECT_EQ(decoded, symbols);
    EXPECT_EQ(back, carried);
    EXPECT_EQ(2 * used, bytes);
    // More behind the words changes nothing; fewer words are an error wherever they end.
    std::vector<std::byte> longer = stream;
    longer.resize(stream.size() + 200, std::byte{0xab});
    ASSERT_TRUE(kernels_.rans_decode(page, states, longer, decoded.data(), back, &used).ok());
    EXPECT_EQ(2 * used, bytes);
    EXPECT_EQ(decoded, symbols);
    for (std::size_t cut = 0; cut < bytes; cut += 1 + bytes / 10) {
      const std::vector<std::byte> shorter(stream.begin(), stream.begin() + std::ptrdiff_t(cut));
      EXPECT_FALSE(kernels_.rans_decode(page, states, shorter, decoded.data(), back, &used).ok());
    }
  }
}

// Hostile words: the same symbols or the same error.
TEST_P(LynxKernelsTest, CoderReadsAnythingAsTheReferenceDoes) {
  for (int round = 0; round < 200; ++round) {
    Random random(std::uint64_t(round) + 77);
    const Sizes& sizes = kSizes[random.Below(std::size(kSizes))];
    std::vector<const LynxTable*> tables;
    for (int c = 0; c < sizes.channels; ++c) tables.push_back(&LynxTables::Get()[int(random.Below(kLynxTables))]);
    const RansPage page{sizes.tokens, sizes.channels, tables.data()};
    RansStates states{};
    for (auto& state : states) state = std::uint32_t(random.Next()) | 0x10000u;
    std::vector<std::byte> words(random.Below(4 * std::size_t(sizes.tokens * sizes.channels)));
    for (auto& byte : words) byte = std::byte(random.Next() & 0xff);
    const std::size_t count = std::size_t(sizes.tokens * sizes.channels);
    std::vector<std::uint8_t> expected(count, 99), symbols(count, 99);
    std::vector<std::uint16_t> carried(std::size_t(RansLanesOf(sizes.channels)));
    std::size_t used = 0;
    const Status expected_status = reference_.rans_decode(page, states, words, expected.data(), carried, &used);
    const Status status = kernels_.rans_decode(page, states, words, symbols.data(), carried, &used);
    ASSERT_EQ(status.ToString(), expected_status.ToString()) << round;
    if (status.ok()) {
      ASSERT_EQ(symbols, expected) << round;
    }
  }
}

TEST_P(LynxKernelsTest, Turns) {
  for (RopePairing pairing : {RopePairing::kNorm, RopePairing::kNeox}) {
    for (const auto& [dims, offset, head_dim] : {std::array{64, 0, 64}, {6, 3, 11}, {96, 0, 128}, {64, 512, 576}}) {
      RopeShape shape;
      shape.pairing = pairing;
      shape.offset = offset;
      shape.dims = dims;
      for (int pair = 0; pair < dims / 2; ++pair) shape.radians_per_token.push_back(1.0f / float(1 + pair));
      const RopeTable rope(shape, 256);
      const std::size_t stride = std::size_t(head_dim) + 5;
      Random random(5);
      std::vector<float> rows = Rows({20, int(stride)}, &random), expected = rows;
      kernels_.unrotate(rope, 3, 20, stride, rows.data());
      reference_.unrotate(rope, 3, 20, stride, expected.data());
      EXPECT_EQ(std::memcmp(rows.data(), expected.data(), rows.size() * 4), 0);
      kernels_.rotate(rope, 200, 20, stride, rows.data());
      reference_.rotate(rope, 200, 20, stride, expected.data());
      EXPECT_EQ(std::memcmp(rows.data(), expected.data(), rows.size() * 4), 0);
    }
  }
}

// Just below, at and above the middle of two BF16 numbers, in rows at every kind of address.
TEST_P(LynxKernelsTest, NarrowRoundsToNearestEven) {
  constexpr int kChannels = 204;
  std::vector<float> row(kChannels);
  const std::uint32_t upper[] = {0x3f80, 0x3f81, 0x3fff, 0xbf80, 0xc07f, 0x0000, 0x8000, 0x0001, 0x007f};
  const std::uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (int c = 0; c < kChannels; ++c) row[std::size_t(c)] = std::bit_cast<float>(upper[c / 6 % 9] << 16 | lower[c % 6]);
  for (int place : {0, 1, 8, 16, 32}) {
    alignas(64) std::uint16_t halves[kChannels + 33] = {}, expected[kChannels + 33] = {};
    const auto rows = [&](std::uint16_t* to) {
      return BasicRows<std::byte>{reinterpret_cast<std::byte*>(to + place), 2 * kChannels, ElementType::kBf16};
    };
    kernels_.narrow(row.data(), 1, kChannels, rows(halves));
    reference_.narrow(row.data(), 1, kChannels, rows(expected));
    EXPECT_EQ(std::memcmp(halves, expected, sizeof halves), 0) << place;
  }
}

TEST_P(LynxKernelsTest, RowsBothWays) {
  for (const Sizes& sizes : kSizes) {
    const auto& [tokens, channels] = sizes;
    Random random(std::uint64_t(tokens + channels));
    const std::vector<float> rows = Rows(sizes, &random);
    const std::size_t width = std::size_t(channels), count = rows.size();
    const auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    std::vector<float> of_channel(width), expected_of_channel(width), per_cell(width);
    kernels_.spreads(rows.data(), tokens, channels, of_channel.data());
    reference_.spreads(rows.data(), tokens, channels, expected_of_channel.data());
    EXPECT_TRUE(same(of_channel, expected_of_channel));
    kernels_.magnitudes(rows.data(), tokens, channels, of_channel.data());
    reference_.magnitudes(rows.data(), tokens, channels, expected_of_channel.data());
    EXPECT_TRUE(same(of_channel, expected_of_channel));

    std::vector<std::uint16_t> halves(count), expected_halves(count);
    const auto as_rows = [&](std::vector<std::uint16_t>& of) {
      return BasicRows<std::byte>{reinterpret_cast<std::byte*>(of.data()), 2 * channels, ElementType::kBf16};
    };
    kernels_.narrow(rows.data(), tokens, channels, as_rows(halves));
    reference_.narrow(rows.data(), tokens, channels, as_rows(expected_halves));
    EXPECT_EQ(halves, expected_halves);
    std::vector<float> wide(count), expected_wide(count);
    kernels_.widen(as_rows(halves), tokens, channels, wide.data());
    reference_.widen(as_rows(halves), tokens, channels, expected_wide.data());
    EXPECT_TRUE(same(wide, expected_wide));

    for (auto& each : per_cell) each = EighthOctave(int(random.Below(80)));
    std::vector<std::int32_t> cells(count), expected_cells(count), sums(width), expected_sums(width), means(width),
        shifts(width);
    kernels_.cells(rows.data(), tokens, channels, per_cell.data(), cells.data());
    reference_.cells(rows.data(), tokens, channels, per_cell.data(), expected_cells.data());
    EXPECT_EQ(cells, expected_cells);
    kernels_.cell_sums(cells.data(), tokens, channels, sums.data());
    reference_.cell_sums(cells.data(), tokens, channels, expected_sums.data());
    EXPECT_EQ(sums, expected_sums);
    for (std::size_t c = 0; c < width; ++c) {
      means[c] = LynxMeanOf(sums[c], tokens);
      shifts[c] = int(random.Below(9));
    }
    kernels_.cell_distances(cells.data(), tokens, channels, means.data(), sums.data());
    reference_.cell_distances(cells.data(), tokens, channels, means.data(), expected_sums.data());
    EXPECT_EQ(sums, expected_sums);

    const LynxChannels of{means.data(), shifts.data()};
    std::vector<std::uint8_t> symbols(count), expected_symbols(count), residuals(count), expected_residuals(count);
    kernels_.split(cells.data(), tokens, channels, of, symbols.data(), residuals.data());
    reference_.split(expected_cells.data(), tokens, channels, of, expected_symbols.data(), expected_residuals.data());
    EXPECT_EQ(cells, expected_cells);
    EXPECT_EQ(symbols, expected_symbols);
    EXPECT_EQ(residuals, expected_residuals);
    std::vector<std::uint32_t> positions(count), expected_positions(count);
    const std::size_t found = kernels_.find_outermost(symbols.data(), count, positions.data());
    ASSERT_EQ(found, reference_.find_outermost(symbols.data(), count, expected_positions.data()));
    positions.resize(found), expected_positions.resize(found);
    EXPECT_EQ(positions, expected_positions);

    std::vector<std::int32_t> centres(count), expected_centres(count);
    kernels_.centres(symbols.data(), tokens, channels, of, centres.data());
    reference_.centres(symbols.data(), tokens, channels, of, expected_centres.data());
    EXPECT_EQ(centres, expected_centres);
    kernels_.values(centres.data(), residuals.data(), 8, channels, per_cell.data(), of_channel.data());
    reference_.values(centres.data(), residuals.data(), 8, channels, per_cell.data(), expected_of_channel.data());
    EXPECT_TRUE(same(of_channel, expected_of_channel));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, LynxKernelsTest, ::testing::ValuesIn(AllSimdKernels()),
                         [](const auto& each) { return std::string(each.param->name); });

}  // namespace
}  // namespace lynx::testing
