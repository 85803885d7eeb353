// The parts of `lynx` by themselves: bits, tables, coder.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/portable_math.h"
#include "base/random.h"
#include "codec/bit_io.h"
#include "codec/lynx_reference.h"
#include "codec/rans.h"

namespace lynx::testing {
namespace {

TEST(PortableMath, SinAndCosAreThoseOfTheLibrary) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const double x = (random.Unit() - 0.5) * (i % 2 == 0 ? 20.0 : 0x1p21);
    double sine, cosine;
    PortableSinCos(x, &sine, &cosine);
    ASSERT_NEAR(sine, std::sin(x), 0x1p-50) << x;
    ASSERT_NEAR(cosine, std::cos(x), 0x1p-50) << x;
  }
  double sine, cosine;
  PortableSinCos(0.0, &sine, &cosine);
  EXPECT_EQ(sine, 0.0);
  EXPECT_EQ(cosine, 1.0);
}

TEST(Bits, NumbersAndGolombCodesComeBack) {
  Random random(2);
  std::vector<std::byte> bytes(1 << 16);
  BitWriter writer(bytes);
  std::vector<std::pair<std::uint32_t, int>> written;  // negative: a Golomb code of order -1 - count
  std::size_t golomb_bits = 0, bits = 0;
  for (int i = 0; i < 5000; ++i) {
    const int count = int(random.Below(33));
    const auto value = std::uint32_t(random.Next() & ((std::uint64_t{1} << count) - 1));
    written.emplace_back(value, count);
    writer.Put(value, count);
    bits += std::size_t(count);
    const int order = int(random.Below(16));
    const auto code = std::uint32_t(random.Next() >> (36 + random.Below(28)));
    written.emplace_back(code, -1 - order);
    writer.PutGolomb(code, order);
    golomb_bits += std::size_t(GolombBits(code, order));
  }
  writer.Finish();
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer.bytes(), (bits + golomb_bits + 7) / 8);
  const std::size_t cut = 1000;
  BitReader reader(std::span(std::as_const(bytes)).first(cut),
                   std::span(std::as_const(bytes)).subspan(cut, writer.bytes() - cut));
  for (const auto& [value, count] : written) {
    ASSERT_EQ(count >= 0 ? reader.Get(count) : reader.GetGolomb(-1 - count), value);
  }
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.bytes(), writer.bytes());
  reader.Get(8);
  EXPECT_FALSE(reader.ok());
  for (std::int32_t value : {0, 1, -1, 1 << 24, -(1 << 24)}) EXPECT_EQ(UnZigZag(ZigZag(value)), value);
}

TEST(Bits, TooManyOnesAndFullBuffersAreErrors) {
  const std::vector<std::byte> ones(16, std::byte{0xff});
  BitReader reader(ones);
  EXPECT_EQ(reader.GetGolomb(0), 0u);
  EXPECT_FALSE(reader.ok());
  std::vector<std::byte> small(3);
  BitWriter writer(small);
  writer.Put(0xffffff, 24);
  EXPECT_TRUE(writer.ok());
  writer.Put(1, 1);
  writer.Finish();
  EXPECT_FALSE(writer.ok());
}

TEST(LynxTables, EverySymbolHasItsPlace) {
  const LynxTables& tables = LynxTables::Get();
  for (int table = 0; table < kLynxTables; ++table) {
    const LynxTable& each = tables[table];
    EXPECT_EQ(each.cumulative[0], 0);
    EXPECT_EQ(each.cumulative[kLynxSymbols], 4096);
    for (int symbol = 0; symbol < kLynxSymbols; ++symbol) {
      EXPECT_GE(each.Frequency(symbol), 1);
      EXPECT_EQ(each.Frequency(symbol), each.Frequency(kLynxSymbols - 1 - symbol));
      if (symbol > 0 && symbol < 8) {
        EXPECT_GE(each.Frequency(symbol + 1), each.Frequency(symbol));
      }
    }
    if (table > 0) {
      EXPECT_LE(each.Frequency(8), tables[table - 1].Frequency(8));
    }
  }
}

// The numbers of a decoder that does not want to compute them: docs/codec.md says how, this says which.
TEST(LynxTables, AreTheSameEverywhere) {
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  for (int table = 0; table < kLynxTables; ++table) {
    for (std::uint16_t each : LynxTables::Get()[table].cumulative) writer.Put(each);
  }
  EXPECT_EQ(Crc32c(bytes), 1496154940u);
}

TEST(LynxTables, BitsAreEntropies) {
  // A Laplace and a normal variable of mean magnitude 4 steps: 1 + log2(4 e) and log2(4 sqrt(pi / 2) sqrt(2 pi e)).
  EXPECT_GT(LynxTables::Get().Bits(16), std::log2(4 * std::sqrt(M_PI / 2) * std::sqrt(2 * M_PI * M_E)) - 0.05);
  EXPECT_LT(LynxTables::Get().Bits(16), 1 + std::log2(4 * M_E));
  for (int eighths = -60; eighths < 60; ++eighths) {
    EXPECT_GE(LynxTables::Get().Bits(eighths + 1), LynxTables::Get().Bits(eighths));
  }
  for (int channel_class = 0; channel_class < 60; ++channel_class) {
    const double magnitude = 32 * 1000 * std::exp2((channel_class - 16) / 4.0);
    EXPECT_EQ(LynxTables::Get().ClassOf(std::int64_t(magnitude), 1000), channel_class);
  }
}

// A level is its symbol, what an outermost symbol leaves open, and low bits.
TEST(LynxSymbols, EveryLevelComesBack) {
  for (int shift = 0; shift <= 12; ++shift) {
    for (std::int32_t level : {0, 1, -1, 7, -7, 8, -8, 9, -9, 100, -100, 12345, -12345, 1 << 20, -(1 << 20)}) {
      const std::uint8_t symbol = LynxSymbolOf(level, shift);
      const std::int32_t above = std::abs(LynxHighOf(level, shift)) - kLynxOutermost;
      EXPECT_EQ(above >= 0, LynxIsOutermost(symbol));
      std::int32_t centre = LynxCoarseCentre(symbol, shift, 0) + 16;
      if (above > 0) centre += (symbol == 0 ? -above : above) * (32 << shift);
      EXPECT_EQ(centre + 32 * std::int32_t(LynxLowOf(level, shift)), 32 * level) << shift;
    }
  }
}

TEST(LynxSymbols, NestingIsTheFormula) {
  for (int step : {-17, 0, 5}) {
    const float width = EighthOctave(step);
    Random random(3);
    for (int i = 0; i < 20000; ++i) {
      const float value = float(random.Unit() - 0.5) * 40.0f;
      const std::int32_t mean = int(random.Below(41)) - 20;
      const std::int32_t n = LynxNested(LynxCellOf(value, EighthOctave(32 - step)), mean);
      const double e = (double(value) - double(mean) * double(width) / 4) / double(width);
      ASSERT_NEAR(n + 0.5, 16 * e + 8, 0.501) << value;
      const double unit = double(width) / 32;
      const double coarse = 32 * (n >> 4) + 8 * mean - 16;
      const auto centre = [&](int known) {
        return coarse + LynxFineCentre((n & 15) >> (4 - known), known) + LynxHalfCell(known);
      };
      EXPECT_NEAR(centre(0) * unit, ((n >> 4) + mean / 4.0) * double(width), 1e-5);  // its level
      EXPECT_NEAR(centre(2) * unit, double(value), double(width) / 8 + 1e-5);
      EXPECT_NEAR(centre(4) * unit, double(value), double(width) / 32 + 1e-5);
    }
  }
}

TEST(Rans, SymbolsAndCarriedBitsComeBack) {
  for (int channels : {1, 3, 31, 32, 33, 64, 80}) {
    for (int tokens : {1, 2, 100}) {
      Random random(std::uint64_t(channels * 1000 + tokens));
      const std::size_t count = std::size_t(channels * tokens);
      std::vector<const LynxTable*> tables;
      for (int c = 0; c < channels; ++c) tables.push_back(&LynxTables::Get()[int(random.Below(kLynxTables))]);
      std::vector<std::uint8_t> symbols(count), decoded(count, 99);
      for (std::size_t i = 0; i < count; ++i) {
        symbols[i] = tables[i % std::size_t(channels)]->symbol[random.Below(i % 9 == 0 ? 40 : 4096)];
      }
      std::vector<std::uint16_t> carried, back(std::size_t(RansLanesOf(channels))), words(kRansSlackWords + count);
      for (std::size_t i = 0; i < back.size(); ++i) carried.push_back(std::uint16_t(random.Next()));
      RansStates states;
      std::uint16_t* end = words.data() + words.size();
      const std::uint16_t* first = RansEncode({tokens, channels, tables.data()}, symbols.data(), carried, end, &states);
      std::vector<std::byte> bytes;
      for (const std::uint16_t* word = first; word != end; ++word) {
        bytes.push_back(std::byte(*word & 0xff));
        bytes.push_back(std::byte(*word >> 8));
      }
      std::size_t used = 0;
      ASSERT_TRUE(RansDecode({tokens, channels, tables.data()}, states, bytes, decoded.data(), back, &used).ok());
      EXPECT_EQ(decoded, symbols);
      EXPECT_EQ(back, carried);
      EXPECT_EQ(2 * used, bytes.size());
      if (!bytes.empty()) {
        bytes.resize(bytes.size() - 2);
        EXPECT_FALSE(RansDecode({tokens, channels, tables.data()}, states, bytes, decoded.data(), back, &used).ok());
      }
      states[0] = 0xffff;
      EXPECT_FALSE(RansDecode({tokens, channels, tables.data()}, states, bytes, decoded.data(), back, &used).ok());
    }
  }
}

}  // namespace
}  // namespace lynx::testing
