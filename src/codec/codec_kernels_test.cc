// One-element definitions exhaustively, and every kernel table against the reference.
#include <gtest/gtest.h>

#include "codec/elements.h"
#include "codec/page_codec.h"
#include "codec/page_memory_test.h"
#include "codec/paper_levels.h"

namespace lynx::testing {
namespace {

TEST(Rounding, DirectedHalfsSurroundEveryValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = std::uint16_t(bits);
    const float value = F16ToFloat(half);
    if (!std::isfinite(value)) {
      EXPECT_FALSE(F16IsFinite(half));
      continue;
    }
    EXPECT_EQ(F16ToFloat(F16Down(value)), value);
    EXPECT_EQ(F16ToFloat(F16Up(value)), value);
    const float above = std::nextafter(value, 1e9f), below = std::nextafter(value, -1e9f);
    if (std::fabs(above) < 65504.0f) {
      EXPECT_EQ(F16ToFloat(F16Down(above)), value);
      EXPECT_GT(F16ToFloat(F16Up(above)), value);
    }
    if (std::fabs(below) < 65504.0f) {
      EXPECT_EQ(F16ToFloat(F16Up(below)), value);
      EXPECT_LT(F16ToFloat(F16Down(below)), value);
    }
  }
}

// The truth table of docs/codec.md.
TEST(Rounding, TruthTable) {
  struct Row {
    float value;
    int nearest, down, up, bf16;
  };
  for (const Row& row :
       {Row{1.0f, 0x3c00, 0x3c00, 0x3c00, 0x3f80}, Row{1 + 0x1p-11f, 0x3c00, 0x3c00, 0x3c01, 0x3f80},
        Row{1 + 3 * 0x1p-11f, 0x3c02, 0x3c01, 0x3c02, 0x3f80}, Row{-1 - 0x1p-11f, 0xbc00, 0xbc01, 0xbc00, 0xbf80},
        Row{0x1p-25f, 0, 0, 1, 0x3300}, Row{1e-30f, 0, 0, 1, 0x0da2}, Row{-1e-30f, 0x8000, 0x8001, 0x8000, 0x8da2},
        Row{1 + 0x1p-8f, 0x3c04, 0x3c04, 0x3c04, 0x3f80}, Row{1 + 3 * 0x1p-8f, 0x3c0c, 0x3c0c, 0x3c0c, 0x3f82}}) {
    EXPECT_EQ(FloatToF16(row.value), row.nearest) << row.value;
    EXPECT_EQ(F16Down(row.value), row.down) << row.value;
    EXPECT_EQ(F16Up(row.value), row.up) << row.value;
    EXPECT_EQ(FloatToBf16(row.value), row.bf16) << row.value;
  }
}

// With e = (x - level 0 of the anchor) / step: n = floor(2^r e + 2^(r-1)) for every split, and every prefix of n
// reconstructs at the centre of what it knows.
TEST(Nested, EveryCellAndItsNesting) {
  for (const auto& [low, cell] : {std::pair{0.0f, 1.0f}, {-3.0f, 0.25f}, {100.0f, 0x1p-8f}}) {
    const float first = NestedFirst(low, NestedHalf(0), cell);
    for (int n = 0; n < 256; ++n) {
      const float center = NestedCentre(n, first, cell);
      EXPECT_EQ(NestedQuantize(center, first, 1 / cell), n);
      EXPECT_EQ(NestedQuantize(center - 0.49f * cell, first, 1 / cell), n);
      EXPECT_EQ(NestedQuantize(center + 0.49f * cell, first, 1 / cell), n);
      for (int rest : {2, 3, 4, 5}) {
        const float step = float(1 << rest) * cell, level0 = NestedFirst(low, NestedHalf(rest), cell);
        EXPECT_EQ(n, int(std::floor((center - level0) / step * float(1 << rest) + float(1 << rest) / 2)));
        EXPECT_EQ(n >> rest, int(std::lrint((center - level0) / step)));
        EXPECT_EQ(NestedCentre(n >> rest << rest, level0, cell), level0 + float(n >> rest) * step);
      }
    }
    EXPECT_EQ(NestedQuantize(low - 5, first, 1 / cell), 0);
    EXPECT_EQ(NestedQuantize(low + 300 * cell, first, 1 / cell), 255);
  }
  EXPECT_EQ(NestedQuantize(5.0f, 5.0f, 0.0f), 0);
}

TEST(Integers, NearestIntegerIsTheDefinitionEverywhere) {
  for (int i = -130 * 256; i <= 130 * 256; ++i) {
    const float x = float(i) / 256.0f;
    for (float value : {x, std::nextafter(x, 1e9f), std::nextafter(x, -1e9f)}) {
      ASSERT_EQ(NearestInteger(value), std::lrint(value)) << value;
    }
  }
  for (int nibble = 0; nibble < 16; ++nibble) EXPECT_EQ(SignedNibble(nibble), nibble < 8 ? nibble : nibble - 16);
}

TEST(PaperLevels, EveryLevelSplitsAndJoins) {
  for (int full_scale : {120, 127}) {
    int codes_used = 0;
    std::vector<bool> used(32);
    for (int level = 0; level <= full_scale; ++level) {
      for (bool negative : {false, true}) {
        const int coarse = PaperCoarse(level);
        const int anchor = PaperAnchor(coarse, negative);
        const int residual = PaperResidual(coarse, level);
        EXPECT_GE(residual, -8);
        EXPECT_LE(residual, 7);
        EXPECT_EQ(PaperIsNegative(anchor), negative);
        EXPECT_EQ(PaperCoarseOf(anchor), coarse);
        EXPECT_EQ(PaperJoin(coarse, residual), level);
        codes_used += used[anchor + 16] ? 0 : 1;
        used[anchor + 16] = true;
        if (full_scale == 120) {
          EXPECT_EQ(SignedNibble(anchor & 15), anchor);
        }
      }
    }
    EXPECT_EQ(codes_used, full_scale == 120 ? 16 : 18);
  }
  for (int coarse = 0; coarse < 16; ++coarse) {
    for (int residual = -8; residual < 8; ++residual) {
      EXPECT_GE(PaperJoin(coarse, residual), 0);
      EXPECT_LT(PaperJoin(coarse, residual), 256);
    }
  }
}

TEST(PaperLevels, TablesAreTheFormula) {
  for (double alpha : {0.01, 1.0, 4.0, 100.0, 255.0, 2000.0, 1e6}) {
    for (int full_scale : {120, 127}) {
      const PaperLevels levels(alpha, full_scale);
      const auto exact = [&](long double level) {
        return std::expm1(level / full_scale * std::log1p((long double)alpha)) / alpha;
      };
      for (int level = 0; level < 256; ++level) EXPECT_EQ(levels.ValueOf(level), float(exact(level))) << alpha;
      for (int level = 0; level < full_scale; ++level) {
        const float threshold = levels.ThresholdOf(level);
        EXPECT_EQ(threshold, float(exact(level + 0.5L))) << alpha;
        EXPECT_EQ(levels.LevelOf(threshold), level + 1);
        EXPECT_EQ(levels.LevelOf(std::nextafter(threshold, 0.0f)), level);
        EXPECT_EQ(levels.LevelOf(levels.ValueOf(level)), level);
      }
      EXPECT_EQ(levels.LevelOf(0.0f), 0);
      EXPECT_EQ(levels.LevelOf(1.0f), full_scale);
      EXPECT_EQ(levels.LevelOf(1.5f), full_scale);
      // Definition: how many thresholds are not above the magnitude.
      Random random(4);
      for (int i = 0; i < 2000; ++i) {
        const auto magnitude = float(std::exp(-17.0 * random.Unit()));
        int level = 0;
        while (level < full_scale && levels.ThresholdOf(level) <= magnitude) ++level;
        ASSERT_EQ(levels.LevelOf(magnitude), level) << alpha << " " << magnitude;
      }
    }
  }
}

// Whole pages: every input, odd widths, partial pages, F32 and BF16 rows; streams and decoded values are the same bytes
// for every instruction set of this machine.
TEST(Kernels, EverySetEqualsTheReference) {
  ASSERT_FALSE(AllSimdKernels().empty());
  for (const char* spec : {"int8", "int4", "nested", "nested:anchor=3", "nested:anchor=5", "nested:anchor=6"}) {
    for (Input input : kInputs) {
      for (int channels : {1, 7, 33, 192}) {
        for (int tokens : {1, 2, 31, 97, 256}) {
          const ElementType type = tokens % 2 == 0 ? ElementType::kF32 : ElementType::kBf16;
          const PageAddress address{0, KvKind::kKey, 0, 1, 2, tokens};
          const CacheShape shape = ShapeFor(1, channels, type);
          const auto reference = MustMake(spec, shape, ReferenceKernels());
          PageMemory source(address, channels, type);
          source.Fill(PaintValues(input, tokens, channels, std::uint64_t(tokens * channels), type));
          PageView view = source.view();
          view.tokens_after = 20;
          const Streams streams = EncodePage(*reference, view).value();
          for (const CodecKernels* kernels : AllSimdKernels()) {
            SCOPED_TRACE(std::string(kernels->name) + " " + spec + " input " + std::to_string(int(input)) + ", " +
                         std::to_string(channels) + " channels, " + std::to_string(tokens) + " tokens");
            const auto simd = MustMake(spec, shape, *kernels);
            ASSERT_EQ(EncodePage(*simd, view).value(), streams);
            for (std::size_t count = 1; count <= streams.size(); ++count) {
              PageMemory expected(address, channels, type), actual(address, channels, type);
              ASSERT_TRUE(DecodePage(*reference, streams, count, expected.span()).ok());
              ASSERT_TRUE(DecodePage(*simd, streams, count, actual.span()).ok());
              ASSERT_EQ(actual.bytes(), expected.bytes());
            }
          }
        }
      }
    }
  }
}

// Wider than the blocks of channels that the kernels work in.
TEST(Kernels, WidePages) {
  const PageAddress address{0, KvKind::kKey, 0, 17, 300, 9};
  const CacheShape shape = ShapeFor(17, 127);
  PageMemory source(address, 127, ElementType::kBf16);
  source.Fill(PaintValues(Input::kNormal, 9, 17 * 127, 3, ElementType::kBf16));
  for (const char* spec : {"int8", "int4", "nested", "nested:anchor=5"}) {
    const auto reference = MustMake(spec, shape, ReferenceKernels());
    const Streams streams = EncodePage(*reference, source.view()).value();
    for (const CodecKernels* kernels : AllSimdKernels()) {
      const auto simd = MustMake(spec, shape, *kernels);
      ASSERT_EQ(EncodePage(*simd, source.view()).value(), streams) << kernels->name << " " << spec;
      PageMemory expected(address, 127, ElementType::kBf16), actual(address, 127, ElementType::kBf16);
      ASSERT_TRUE(DecodePage(*reference, streams, streams.size(), expected.span()).ok());
      ASSERT_TRUE(DecodePage(*simd, streams, streams.size(), actual.span()).ok());
      ASSERT_EQ(actual.bytes(), expected.bytes()) << kernels->name << " " << spec;
    }
  }
}

// All byte values of codes, through every reconstruction.
TEST(Kernels, EveryCodeReconstructsTheSame) {
  constexpr int kTokens = 8, kWide = 256;
  std::vector<std::byte> anchor(kTokens * kWide), residual(kTokens * kWide);
  for (int i = 0; i < kTokens * kWide; ++i) {
    anchor[i] = std::byte(i * 167 + i / kWide);
    residual[i] = std::byte(i * 91 + 13 * (i / kWide));
  }
  const std::vector<float> low(kWide, -1.7f), cell(kWide, 0.013f),
      steps{0.37f, 2.5f, 0.0f, 1.0f, 3.0f, 0.1f, 8.0f, 7.7f};
  std::vector<float> expected(kTokens * kWide), actual(kTokens * kWide);
  const CodecKernels& reference = ReferenceKernels();
  for (const CodecKernels* simd : AllSimdKernels()) {
    for (int anchor_bits : {3, 4, 5, 6}) {
      for (const std::byte* finer : {static_cast<const std::byte*>(nullptr), std::as_const(residual).data()}) {
        reference.nested_reconstruct(anchor.data(), finer, kTokens, kWide, anchor_bits, low.data(), cell.data(),
                                     RowsOf(expected.data(), kWide));
        simd->nested_reconstruct(anchor.data(), finer, kTokens, kWide, anchor_bits, low.data(), cell.data(),
                                 RowsOf(actual.data(), kWide));
        EXPECT_EQ(expected, actual) << simd->name;
      }
    }
    for (int bits : {8, 4}) {
      reference.integer_reconstruct(anchor.data(), kTokens, kWide, bits, steps.data(), RowsOf(expected.data(), kWide));
      simd->integer_reconstruct(anchor.data(), kTokens, kWide, bits, steps.data(), RowsOf(actual.data(), kWide));
      EXPECT_EQ(expected, actual) << simd->name;
    }
  }
}

// Normal values: how far each codec is from the original, so that a loss of precision inside the bounds is seen too.
TEST(Nmse, OfEveryCodecOnNormalValues) {
  struct Case {
    const char* spec;
    double anchor;
    double full;
  };
  for (const Case& each : {Case{"int8", 3.6e-5, 3.6e-5}, Case{"int4", 1.18e-2, 1.18e-2},
                           Case{"paper:alpha=4", 1.02e-2, 3e-5}, Case{"nested", 6.5e-3, 2.6e-5}}) {
    const PageAddress address{0, KvKind::kKey, 0, 1, 0, 256};
    const auto codec = MustMake(each.spec, ShapeFor(1, 64, ElementType::kF32));
    PageMemory source(address, 64, ElementType::kF32);
    Random random(8);
    std::vector<float> values(256 * 64);
    for (float& value : values) value = Normal(random);
    source.Fill(values);
    const Streams streams = EncodePage(*codec, source.view()).value();
    for (std::size_t count : {std::size_t{1}, streams.size()}) {
      PageMemory target(address, 64, ElementType::kF32);
      ASSERT_TRUE(DecodePage(*codec, streams, count, target.span()).ok());
      const double nmse = Nmse(values, target.Values());
      const double expected = count == 1 ? each.anchor : each.full;
      EXPECT_LT(nmse, expected * 1.1) << each.spec << " from " << count;
      EXPECT_GT(nmse, expected * 0.8) << each.spec << " from " << count;
    }
  }
}

}  // namespace
}  // namespace lynx::testing
