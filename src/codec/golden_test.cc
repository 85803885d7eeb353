// Byte for byte what the independent implementation in tests/reference/codec_reference.py wrote.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "codec/page_memory_test.h"

namespace lynx::testing {
namespace {

struct GoldenShape {
  int heads;
  int head_dim;
  int tokens;
  ElementType type;
};
// SHAPES of the script.
constexpr GoldenShape kShapes[] = {
    {1, 1, 1, ElementType::kBf16},  {2, 3, 31, ElementType::kBf16},  {1, 8, 32, ElementType::kF16},
    {3, 5, 33, ElementType::kF32},  {1, 7, 255, ElementType::kBf16}, {2, 4, 256, ElementType::kBf16},
    {1, 64, 40, ElementType::kF32},
};
// File name prefix and spec.
constexpr std::pair<const char*, const char*> kCodecs[] = {
    {"raw", "raw"},
    {"int8", "int8"},
    {"int4", "int4"},
    {"int8_group4", "int8:group=4"},
    {"int4_group32", "int4:group=32"},
    {"paper", "paper"},
    {"paper_alpha4", "paper:alpha=4"},
    {"paper127", "paper127"},
    {"nested", "nested"},
    {"nested3", "nested:anchor=3,unrope=1"},
    {"nested5", "nested:anchor=5,recent=0"},
    {"nested6", "nested:anchor=6,recent=30"},
    {"lynx", "lynx"},
    {"lynx3", "lynx:anchor_bits=3.5,streams=3"},
    {"lynx_exact", "lynx:exact=1"},
    {"lynx3_exact", "lynx:anchor_bits=3.5,streams=3,exact=1"},
};

// golden() of the script: for lynx and nested, pages with sinks and recent tokens, K rotated.
RopeShape RopeFor(int number, int head_dim, int streams) {
  if (head_dim < 2) return {};
  const bool norm = number % 4 == 0 && streams < 4;
  RopeShape rope{norm ? RopePairing::kNorm : RopePairing::kNeox, head_dim % 2, head_dim / 2 * 2, {}};
  for (int pair = 0; pair < head_dim / 2; ++pair) rope.radians_per_token.push_back(1.0f / float(1 + 3 * pair));
  return rope;
}

// paint() of the script.
std::vector<float> Paint(int tokens, int channels, bool bad) {
  std::vector<float> values;
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const std::uint64_t bits = Mix64(std::uint64_t(token) * std::uint64_t(channels) + std::uint64_t(channel));
      int sum = -131070;
      for (int k = 0; k < 4; ++k) sum += int(bits >> (16 * k) & 0xffff);
      float value = float(sum) / 32768.0f;
      if (channel % 5 == 1) value *= 64.0f;
      if (channel % 5 == 2) value += 300.0f;
      if (channel % 5 == 3) value = -2.71875f;
      if (channel % 7 == 6) value *= 0x1p-22f;
      if (token == 34) value *= 32.0f;
      if (bad && token == tokens / 2 && channel == channels / 2) value = INFINITY;
      values.push_back(value);
    }
  }
  return values;
}

std::uint32_t ValuesChecksum(const PageMemory& page) {
  const auto bits = page.Bits();
  return Crc32c(bits);
}

TEST(Golden, EveryFile) {
  for (const auto& [prefix, spec] : kCodecs) {
    for (int number = 0; number < int(std::size(kShapes)); ++number) {
      const std::string file = std::string(prefix) + "_" + std::to_string(number) + ".bin";
      SCOPED_TRACE(file);
      std::ifstream stream(std::string(LYNX_SOURCE_DIR) + "/tests/reference/golden/" + file, std::ios::binary);
      const std::vector<char> text{std::istreambuf_iterator<char>(stream), {}};
      ASSERT_GT(text.size(), 8u);
      const auto golden = std::as_bytes(std::span(text));

      GoldenShape each = kShapes[number];
      if (std::string(prefix).ends_with("exact")) each.type = ElementType::kBf16;  // it takes no other
      CacheShape shape;
      shape.element_type = each.type;
      shape.layers.assign(std::size(kShapes), LayerShape{each.heads + 2, each.head_dim, each.head_dim, {}});
      const int stream_count = MustMake(spec, shape)->info().stream_count;
      for (LayerShape& layer : shape.layers) layer.rope = RopeFor(number, each.head_dim, stream_count);
      const bool whole = std::string(prefix).starts_with("lynx") || std::string(prefix).starts_with("nested");
      const PageAddress address{number,     KvKind(number % 2), number % 3, each.heads, whole ? number : 256 * number,
                                each.tokens};
      PageMemory source(address, each.head_dim, each.type);
      source.Fill(Paint(each.tokens, each.heads * each.head_dim, number == 2));
      PageView view = source.view();
      view.tokens_after = 9 * number;

      Streams streams;
      std::vector<const CodecKernels*> tables(AllSimdKernels().begin(), AllSimdKernels().end());
      tables.push_back(&ReferenceKernels());
      for (const CodecKernels* kernels : tables) {
        streams = EncodePage(*MustMake(spec, shape, *kernels), view).value();
        std::vector<std::byte> all;
        for (const auto& bytes : streams) all.insert(all.end(), bytes.begin(), bytes.end());
        ASSERT_EQ(all, std::vector<std::byte>(golden.begin(), golden.end() - 8)) << kernels->name;
      }
      const auto codec = MustMake(spec, shape);
      PageMemory target(address, each.head_dim, ElementType::kF32);
      ASSERT_TRUE(DecodePage(*codec, streams, 1, target.span()).ok());
      EXPECT_EQ(ValuesChecksum(target), LoadLittle<std::uint32_t>(golden.data() + golden.size() - 8));
      ASSERT_TRUE(DecodePage(*codec, streams, streams.size(), target.span()).ok());
      EXPECT_EQ(ValuesChecksum(target), LoadLittle<std::uint32_t>(golden.data() + golden.size() - 4));
    }
  }
}

}  // namespace
}  // namespace lynx::testing
