// The error bounds of docs/codec.md, chunk by chunk, on all inputs.
#include <gtest/gtest.h>

#include <algorithm>

#include "codec/page_codec.h"
#include "codec/page_memory_test.h"
#include "codec/paper_levels.h"

namespace lynx::testing {
namespace {

constexpr int kTokens = 100;
constexpr int kChannels = 40;
constexpr double kHalfUlp = 0x1p-24;    // relative, of a float operation
constexpr double kLeastHalf = 0x1p-24;  // least positive half

struct Range {
  double least = 1e30, greatest = -1e30;
  void Add(double value) {
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  }
  double width() const { return greatest - least; }
  double magnitude() const { return std::max(std::fabs(least), std::fabs(greatest)); }
};

struct Decoded {
  std::vector<float> values;
  std::vector<std::vector<float>> prefixes;  // from 1, 2, … streams
};

Decoded RoundTrip(const std::string& spec, Input input, std::uint64_t seed) {
  const PageAddress address{0, KvKind::kKey, 0, 1, 256, kTokens};  // no sinks
  const auto codec = MustMake(spec, ShapeFor(1, kChannels, ElementType::kF32));
  Decoded result;
  result.values = PaintValues(input, kTokens, kChannels, seed);
  PageMemory source(address, kChannels, ElementType::kF32);
  source.Fill(result.values);
  const auto streams = EncodePage(*codec, source.view());
  LYNX_CHECK(streams.ok());
  for (std::size_t count = 1; count <= streams->size(); ++count) {
    PageMemory target(address, kChannels, ElementType::kF32);
    LYNX_CHECK(DecodePage(*codec, *streams, count, target.span()).ok());
    result.prefixes.push_back(target.Values());
  }
  return result;
}

// Calls check(channel, chunk, page range, chunk range, greatest error of each prefix).
template <typename Check>
void ForEachChunk(const Decoded& decoded, Check check) {
  for (int channel = 0; channel < kChannels; ++channel) {
    Range page;
    for (int token = 0; token < kTokens; ++token) page.Add(decoded.values[token * kChannels + channel]);
    for (int chunk = 0; chunk * kChunkTokens < kTokens; ++chunk) {
      Range range;
      std::vector<double> errors(decoded.prefixes.size());
      for (int token = chunk * kChunkTokens; token < std::min(kTokens, (chunk + 1) * kChunkTokens); ++token) {
        const double value = decoded.values[token * kChannels + channel];
        range.Add(value);
        for (std::size_t k = 0; k < errors.size(); ++k) {
          errors[k] = std::max(errors[k], std::fabs(decoded.prefixes[k][token * kChannels + channel] - value));
        }
      }
      check(channel, chunk, page, range, errors);
    }
  }
}

TEST(CodecBounds, Nested) {
  for (int anchor_bits : {3, 4, 5, 6}) {
    const std::string spec = "nested:anchor=" + std::to_string(anchor_bits);
    for (Input input : kInputs) {
      for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        ForEachChunk(RoundTrip(spec, input, seed), [&](int channel, int chunk, const Range& page, const Range& range,
                                                       const std::vector<double>& errors) {
          // The page's range as stored: base is rounded down by less than a half's spacing, unit up.
          const double spacing = std::max(page.magnitude() * 0x1p-10, kLeastHalf);
          const double unit = (page.width() + spacing) / 255 * (1 + 0x1p-10) + kLeastHalf;
          const double covered = range.width() + 2 * unit;
          const double slack = 8 * kHalfUlp * (page.magnitude() + covered);
          EXPECT_LE(errors[0], covered / (2 << anchor_bits) + slack)
              << spec << " input " << int(input) << " seed " << seed << " channel " << channel << " chunk " << chunk;
          EXPECT_LE(errors[1], covered / 512 + slack)
              << spec << " input " << int(input) << " seed " << seed << " channel " << channel << " chunk " << chunk;
        });
      }
    }
  }
}

TEST(CodecBounds, IntegersPerTokenAndGroup) {
  for (const auto& [name, greatest, group] :
       {std::tuple{"int8", 127.0, kChannels}, std::tuple{"int4", 7.0, kChannels},
        std::tuple{"int8:group=32", 127.0, 32}, std::tuple{"int4:group=7", 7.0, 7},
        std::tuple{"int4:group=64", 7.0, kChannels}}) {
    for (Input input : kInputs) {
      const Decoded decoded = RoundTrip(name, input, 3);
      for (int i = 0; i < kTokens * kChannels;) {
        const int token = i / kChannels, first = i % kChannels;
        double magnitude = 0, error = 0;
        for (int c = first; c < std::min(first + group, kChannels); ++c, ++i) {
          const double value = decoded.values[token * kChannels + c];
          magnitude = std::max(magnitude, std::fabs(value));
          error = std::max(error, std::fabs(decoded.prefixes[0][token * kChannels + c] - value));
        }
        const double step = magnitude / greatest * (1 + 0x1p-10) + kLeastHalf;
        EXPECT_LE(error, step / 2 + 4 * kHalfUlp * magnitude) << name << " input " << int(input) << " token " << token;
      }
    }
  }
}

// Half of the widest cell on (-1, 1), times sigma, times gamma_scale.
TEST(CodecBounds, Paper) {
  for (const auto& [spec, alpha, full_scale] :
       {std::tuple{"paper", 100.0, 120}, std::tuple{"paper:alpha=4", 4.0, 120}, std::tuple{"paper127", 100.0, 127}}) {
    const PaperLevels levels(alpha, full_scale);
    double coarse = 0, fine = 0;  // greatest distance of a magnitude from what its level decodes to
    for (int level = 0; level <= full_scale; ++level) {
      for (double edge : {level == 0 ? 0.0 : double(levels.ThresholdOf(level - 1)),
                          level == full_scale ? 1.0 : double(levels.ThresholdOf(level))}) {
        fine = std::max(fine, std::fabs(edge - levels.ValueOf(level)));
        coarse = std::max(coarse, std::fabs(edge - levels.ValueOf(16 * PaperCoarse(level))));
      }
    }
    for (Input input : kInputs) {
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        ForEachChunk(RoundTrip(spec, input, seed), [&](int channel, int chunk, const Range& page, const Range& range,
                                                       const std::vector<double>& errors) {
          const double spacing = std::max(page.magnitude() * 0x1p-10, kLeastHalf);
          const double gamma_scale = (page.width() + spacing) * (1 + 0x1p-10) + kLeastHalf;
          // The largest deviation from the mean is at most the chunk's range; mu and sigma are halfs in [0, 1].
          const double sigma = range.width() * (1 + 0x1p-10) + gamma_scale * 0x1p-11;
          const double slack = 16 * kHalfUlp * (page.magnitude() + gamma_scale);
          EXPECT_LE(errors[0], coarse * sigma + slack)
              << spec << " input " << int(input) << " seed " << seed << " channel " << channel << " chunk " << chunk;
          EXPECT_LE(errors[1], fine * sigma + slack)
              << spec << " input " << int(input) << " seed " << seed << " channel " << channel << " chunk " << chunk;
        });
      }
    }
  }
}

TEST(CodecBounds, ConstantChannelsOfHalfPrecisionAreExact) {
  for (const char* name : {"nested", "paper", "paper127"}) {
    const PageAddress address{0, KvKind::kKey, 0, 1, 0, kTokens};
    const auto codec = MustMake(name, ShapeFor(1, kChannels));
    PageMemory source(address, kChannels, ElementType::kBf16);
    source.Fill(PaintValues(Input::kConstant, kTokens, kChannels, 1, ElementType::kBf16));
    const auto streams = EncodePage(*codec, source.view());
    ASSERT_TRUE(streams.ok());
    for (std::size_t count = 1; count <= 2; ++count) {
      PageMemory target(address, kChannels, ElementType::kBf16);
      ASSERT_TRUE(DecodePage(*codec, *streams, count, target.span()).ok());
      EXPECT_EQ(target.Bits(), source.Bits()) << name;
    }
  }
}

}  // namespace
}  // namespace lynx::testing
