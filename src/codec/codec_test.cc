// Every codec over shapes, layouts, element types and inputs.
#include <gtest/gtest.h>

#include <limits>

#include "codec/page_codec.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {
namespace {

constexpr int kHeadDims[] = {1, 3, 64, 80, 96, 128, 192, 256, 576};
constexpr int kTokenCounts[] = {1, 31, 32, 33, 255, 256};
constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kF16, ElementType::kF32};

std::string Describe(const std::string& codec, const PageAddress& address, int head_dim) {
  return codec + ", " + std::to_string(address.head_count) + " x " + std::to_string(head_dim) + ", " +
         std::to_string(address.token_count) + " tokens";
}

// Bits per element, metadata included, header not (docs/codec.md, table of codecs).
double PayloadBits(const PageShape& shape, std::size_t bytes) {
  return 8.0 * double(bytes - kPageStreamHeaderBytes) / (double(shape.heads) * shape.head_dim * shape.tokens);
}

TEST(CodecShapes, EveryShapeComesBackAndEncodesLikeTheReference) {
  for (const std::string& name : CodecNames()) {
    for (int head_dim : kHeadDims) {
      for (int heads : {1, 2, 3, 8}) {
        if (heads > 3 && head_dim > 128) continue;  // the wide ones take long and show nothing new
        for (int tokens : kTokenCounts) {
          const CacheShape shape = ShapeFor(heads, head_dim);
          const PageAddress address{1, KvKind::kValue, 0, heads, 512, tokens};
          SCOPED_TRACE(Describe(name, address, head_dim));
          const auto codec = MustMake(name, shape);
          PageMemory source(address, head_dim, ElementType::kBf16);
          source.Fill(PaintValues(Input::kNormal, tokens, heads * head_dim, 7, ElementType::kBf16));
          const auto streams = EncodePage(*codec, source.view());
          ASSERT_TRUE(streams.ok()) << streams.status().ToString();
          if (heads * head_dim <= 128) {
            const auto reference = EncodePage(*MustMake(name, shape, ReferenceKernels()), source.view());
            ASSERT_EQ(*streams, *reference);
          }
          for (std::size_t count = 1; count <= streams->size(); ++count) {
            PageMemory target(address, head_dim, ElementType::kBf16);
            ASSERT_TRUE(DecodePage(*codec, *streams, count, target.span()).ok());
            if (name == "raw") {
              ASSERT_EQ(target.Bits(), source.Bits());
            }
            for (float value : target.Values()) ASSERT_TRUE(std::isfinite(value));
          }
        }
      }
    }
  }
}

TEST(CodecShapes, BitsPerElement) {
  const std::vector<std::pair<std::string, std::vector<double>>> expected = {
      {"raw", {16}},         {"int8", {8 + 16.0 / 192}}, {"int4", {4 + 16.0 / 192}},
      {"paper", {5.125, 4}}, {"paper127", {6.125, 4}},   {"nested", {4.625 + 16.0 / (192 * 256), 4}}};
  const PageAddress address{0, KvKind::kKey, 0, 3, 256, 256};
  PageMemory source(address, 64, ElementType::kBf16);
  source.Fill(PaintValues(Input::kNormal, 256, 192, 3, ElementType::kBf16));
  for (const auto& [name, bits] : expected) {
    const auto codec = MustMake(name, ShapeFor(3, 64));
    const auto streams = EncodePage(*codec, source.view());
    ASSERT_TRUE(streams.ok());
    ASSERT_EQ(streams->size(), bits.size());
    for (std::size_t k = 0; k < bits.size(); ++k) {
      EXPECT_DOUBLE_EQ(PayloadBits({KvKind::kKey, 3, 64, 256}, (*streams)[k].size()), bits[k]) << name;
    }
  }
}

TEST(CodecLayouts, StridesAndUnwrittenSlotsDoNotMatter) {
  for (const std::string& name : CodecNames()) {
    for (ElementType type : kTypes) {
      for (int head_dim : {1, 3, 64, 80}) {
        for (int tokens : {1, 33, 256}) {
          const PageAddress address{0, KvKind::kKey, 0, 2, 256, tokens};
          SCOPED_TRACE(Describe(name, address, head_dim) + ", type " + std::to_string(int(type)));
          const auto codec = MustMake(name, ShapeFor(2, head_dim, type));
          const auto values = PaintValues(Input::kNormal, tokens, 2 * head_dim, 11, type);
          PageMemory dense(address, head_dim, type);
          dense.Fill(values);
          const auto expected = EncodePage(*codec, dense.view());
          ASSERT_TRUE(expected.ok());
          PageMemory decoded(address, head_dim, type);
          ASSERT_TRUE(DecodePage(*codec, *expected, expected->size(), decoded.span()).ok());
          for (Layout layout : kLayouts) {
            PageMemory source(address, head_dim, type, layout);
            source.Fill(values);
            const auto streams = EncodePage(*codec, source.view());
            ASSERT_TRUE(streams.ok());
            ASSERT_EQ(*streams, *expected) << "layout " << int(layout);
            PageMemory target(address, head_dim, type, layout);
            PageMemory same(address, head_dim, type, layout);
            ASSERT_TRUE(DecodePage(*codec, *streams, streams->size(), target.span()).ok());
            ASSERT_EQ(target.Bits(), decoded.Bits()) << "layout " << int(layout);
            same.Fill(decoded.Values());
            ASSERT_EQ(target.bytes(), same.bytes()) << "written outside the page, layout " << int(layout);
          }
        }
      }
    }
  }
}

TEST(CodecLayouts, HeadRangesAndDestinationTypes) {
  for (const std::string& name : CodecNames()) {
    const auto codec = MustMake(name, ShapeFor(4, 80));
    for (int first_head : {0, 1, 3}) {
      for (int head_count : {1, 2, 4}) {
        if (first_head + head_count > 4) continue;
        const PageAddress address{2, KvKind::kKey, first_head, head_count, 64, 40};
        SCOPED_TRACE(Describe(name, address, 80));
        PageMemory source(address, 80, ElementType::kBf16);
        source.Fill(PaintValues(Input::kNormal, 40, head_count * 80, 5, ElementType::kBf16));
        const auto streams = EncodePage(*codec, source.view());
        ASSERT_TRUE(streams.ok());
        PageMemory floats(address, 80, ElementType::kF32);
        ASSERT_TRUE(DecodePage(*codec, *streams, streams->size(), floats.span()).ok());
        for (ElementType type : kTypes) {
          PageMemory target(address, 80, type);
          PageMemory rounded(address, 80, type);
          ASSERT_TRUE(DecodePage(*codec, *streams, streams->size(), target.span()).ok());
          rounded.Fill(floats.Values());
          EXPECT_EQ(target.Bits(), rounded.Bits());
        }
      }
    }
  }
}

TEST(CodecLayouts, EachLayerHasItsOwnShape) {
  CacheShape shape;
  shape.layers = {{2, 256, 256, {}}, {1, 512, 512, {}}, {1, 576, 0, {}}};
  for (const std::string& name : CodecNames()) {
    const auto codec = MustMake(name, shape);
    CacheBlock source(shape, 0, 300);
    for (int layer = 0; layer < 3; ++layer) {
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        const auto rows = source.Rows(layer, kind);
        const auto values = PaintValues(Input::kNormal, int(rows.size() / 2), 1, 9, ElementType::kBf16);
        for (std::size_t i = 0; i < values.size(); ++i) {
          StoreElement(values[i], ElementType::kBf16, rows.data() + 2 * i);
        }
      }
    }
    CacheBlock target(shape, 0, 300);
    const auto pages = PagesOf(shape, 0, 300, codec->info().page_tokens, codec->info().heads_per_page);
    EXPECT_EQ(pages.size(), name == "lynx" ? 14u : 10u);  // by heads
    for (const PageAddress& address : pages) {
      const auto streams = EncodePage(*codec, *std::as_const(source).Page(address));
      ASSERT_TRUE(streams.ok()) << streams.status().ToString();
      ASSERT_TRUE(DecodePage(*codec, *streams, streams->size(), *target.Page(address)).ok());
    }
    if (name == "raw") {
      for (int layer = 0; layer < 3; ++layer) {
        const auto left = source.Rows(layer, KvKind::kKey), right = target.Rows(layer, KvKind::kKey);
        EXPECT_EQ(std::memcmp(left.data(), right.data(), left.size()), 0);
      }
    }
  }
}

// A8: a page with one bad value travels as its own bits; later streams are empty.
TEST(CodecExact, NonFiniteAndHugeValuesComeBackBitForBit) {
  const PageAddress address{0, KvKind::kKey, 0, 2, 0, 33};
  for (const std::string& name : CodecNames()) {
    for (ElementType type : kTypes) {
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(), 20000.0f}) {
        SCOPED_TRACE(name + " type " + std::to_string(int(type)) + " value " + std::to_string(bad));
        const auto codec = MustMake(name, ShapeFor(2, 3, type));
        auto values = PaintValues(Input::kNormal, 33, 6, 2, type);
        values[100] = bad;
        values[101] = -0.0f;
        PageMemory source(address, 3, type);
        source.Fill(values);
        source.span().At(7, 1, 2)[0] = std::byte{0x01};  // a payload in the low bits of some value
        const auto streams = EncodePage(*codec, source.view());
        ASSERT_TRUE(streams.ok());
        EXPECT_EQ((*streams)[0].size(), kPageStreamHeaderBytes + source.Bits().size());
        for (std::size_t k = 1; k < streams->size(); ++k) EXPECT_EQ((*streams)[k].size(), kPageStreamHeaderBytes);
        for (std::size_t count = 1; count <= streams->size(); ++count) {
          PageMemory target(address, 3, type, Layout::kTokensLast);
          ASSERT_TRUE(DecodePage(*codec, *streams, count, target.span()).ok());
          EXPECT_EQ(target.Bits(), source.Bits());
        }
        PageMemory floats(address, 3, ElementType::kF32);
        ASSERT_TRUE(DecodePage(*codec, *streams, 1, floats.span()).ok());
        EXPECT_EQ(std::isfinite(floats.Values()[100]), std::isfinite(bad));
      }
    }
  }
}

TEST(CodecExact, RawKeepsEveryBf16) {
  const PageAddress address{0, KvKind::kKey, 0, 1, 0, 256};
  const auto codec = MustMake("raw", ShapeFor(1, 256));
  PageMemory source(address, 256, ElementType::kBf16);
  for (int i = 0; i < 65536; ++i) {
    const auto bits = std::uint16_t(i);
    std::memcpy(source.span().At(i / 256, 0, i % 256), &bits, 2);
  }
  const auto streams = EncodePage(*codec, source.view());
  ASSERT_TRUE(streams.ok());
  PageMemory target(address, 256, ElementType::kBf16);
  ASSERT_TRUE(DecodePage(*codec, *streams, 1, target.span()).ok());
  EXPECT_EQ(target.Bits(), source.Bits());
}

TEST(CodecExact, RawRoundsOtherTypesToBf16) {
  for (ElementType type : {ElementType::kF16, ElementType::kF32}) {
    const PageAddress address{0, KvKind::kKey, 0, 1, 0, 40};
    const auto codec = MustMake("raw", ShapeFor(1, 64, type));
    PageMemory source(address, 64, type);
    const auto values = PaintValues(Input::kNormal, 40, 64, 6, type);
    source.Fill(values);
    const auto streams = EncodePage(*codec, source.view());
    ASSERT_TRUE(streams.ok());
    EXPECT_EQ((*streams)[0].size(), kPageStreamHeaderBytes + 2 * values.size());
    PageMemory target(address, 64, type);
    ASSERT_TRUE(DecodePage(*codec, *streams, 1, target.span()).ok());
    const auto decoded = target.Values();
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(decoded[i], Bf16ToFloat(FloatToBf16(values[i])));
  }
}

}  // namespace
}  // namespace lynx::testing
