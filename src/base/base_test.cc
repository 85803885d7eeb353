#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/float16.h"
#include "base/random.h"
#include "lynx/page.h"

namespace lynx {
namespace {

std::vector<std::byte> Painted(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = std::byte(i % 251);
  return bytes;
}

TEST(Crc32c, KnownValue) {
  const char text[] = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(text, 9))), 0xe3069283u);
  EXPECT_EQ(Crc32cReference(std::as_bytes(std::span(text, 9))), 0xe3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32c, EveryWayEqualsReferenceAtEverySizeAndSplit) {
  const auto bytes = Painted(10000);
  for (const Crc32cFunction crc : AllCrc32c()) {
    for (std::size_t size : {0, 1, 7, 8, 9, 255, 256, 257, 511, 512, 767, 1024, 3071, 3072, 3073, 6143, 6144, 9999}) {
      const auto piece = std::span(bytes).first(size);
      const std::uint32_t expected = Crc32cReference(piece);
      EXPECT_EQ(crc(piece, 0), expected) << size;
      for (std::size_t cut : {std::size_t{0}, size / 3, size / 2, size}) {
        EXPECT_EQ(crc(piece.subspan(cut), crc(piece.first(cut), 0)), expected) << size << " cut " << cut;
      }
    }
  }
}

TEST(Float16, EveryBf16ComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToFloat(std::uint16_t(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      ASSERT_EQ(FloatToBf16(value), bits);
    }
  }
}

TEST(Float16, EveryHalfComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = F16ToFloat(std::uint16_t(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
    } else {
      ASSERT_EQ(FloatToF16(value), bits);
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.0f + 0x1p-8f), 0x3f80);            // tie, even below
  EXPECT_EQ(FloatToBf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  // tie, even above
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToF16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(FloatToF16(1.0f + 0x1p-10f + 0x1p-11f), 0x3c02);
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(0x1p-25f), 0x0000);
  EXPECT_EQ(FloatToF16(0x1.8p-25f), 0x0001);
}

TEST(ByteReader, StopsAtTheEnd) {
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  writer.Put(std::uint16_t{0x1234});
  writer.PutString("lynx");
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Get<std::uint16_t>(), 0x1234);
  EXPECT_EQ(reader.GetString(4), "lynx");
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(reader.Get<std::uint8_t>(), 0);
  EXPECT_FALSE(reader.ok());
  ByteReader limited(bytes);
  limited.Get<std::uint16_t>();
  EXPECT_EQ(limited.GetString(3), "");
  EXPECT_FALSE(limited.ok());
}

CacheShape MixedShape() {
  CacheShape shape;
  shape.layers = {{2, 8, 8, {}}, {1, 6, 0, {}}, {3, 4, 10, {}}};
  return shape;
}

TEST(CacheBlock, PagesCoverEveryElementOnce) {
  const CacheShape shape = MixedShape();
  for (int heads : {0, 1, 2}) {
    CacheBlock block(shape, 5, 40);
    const auto pages = PagesOf(shape, 5, 40, 16, heads);
    for (const PageAddress& address : pages) {
      const PageSpan page = *block.Page(address);
      EXPECT_EQ(
          (address.first_token + address.token_count) % 16 == 0 || address.first_token + address.token_count == 45,
          true);
      for (int t = 0; t < address.token_count; ++t)
        for (int h = 0; h < address.head_count; ++h)
          for (int c = 0; c < page.head_dim; ++c) {
            const float before = LoadElement(page.At(t, h, c), page.element_type);
            StoreElement(before + 1, page.element_type, page.At(t, h, c));
          }
    }
    EXPECT_EQ(block.bytes(), std::size_t(40 * shape.BytesPerToken()));
    for (int layer = 0; layer < 3; ++layer)
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        const auto rows = block.Rows(layer, kind);
        for (std::size_t i = 0; i < rows.size(); i += 2) ASSERT_EQ(LoadElement(&rows[i], ElementType::kBf16), 1.0f);
      }
  }
}

TEST(CacheBlock, RefusesAddressesOutside) {
  CacheBlock block(MixedShape(), 10, 20);
  EXPECT_TRUE(block.Page(PageAddress{0, KvKind::kKey, 0, 2, 10, 20}).ok());
  EXPECT_FALSE(block.Page(PageAddress{0, KvKind::kKey, 0, 2, 9, 20}).ok());
  EXPECT_FALSE(block.Page(PageAddress{0, KvKind::kKey, 0, 2, 11, 20}).ok());
  EXPECT_FALSE(block.Page(PageAddress{0, KvKind::kKey, 1, 2, 10, 1}).ok());
  EXPECT_FALSE(block.Page(PageAddress{1, KvKind::kValue, 0, 1, 10, 1}).ok());
  EXPECT_FALSE(block.Page(PageAddress{3, KvKind::kKey, 0, 1, 10, 1}).ok());
  EXPECT_FALSE(block.Page(PageAddress{0, KvKind::kKey, 0, 1, 10, 0}).ok());
}

}  // namespace
}  // namespace lynx
