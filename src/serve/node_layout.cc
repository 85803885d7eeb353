#include "serve/node_layout.h"

#include <bit>
#include <cstdio>
#include <functional>
#include <string>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "codec/page_codec.h"

namespace lynx {
namespace {

std::string RunLengths(const CacheShape& shape, const std::function<std::string(const LayerShape&)>& of) {
  std::string text;
  for (std::size_t i = 0; i < shape.layers.size();) {
    const std::string value = of(shape.layers[i]);
    std::size_t run = 1;
    while (i + run < shape.layers.size() && of(shape.layers[i + run]) == value) ++run;
    if (!text.empty()) text += ',';
    text += value + "x" + std::to_string(run);
    i += run;
  }
  return text;
}

std::string HeadDims(const LayerShape& layer) {
  return std::to_string(layer.key_dim) + "/" + std::to_string(layer.value_dim);
}

std::string Rope(const LayerShape& layer) {
  const RopeShape& rope = layer.rope;
  if (rope.pairing == RopePairing::kNone) return "none";
  std::vector<std::byte> bytes;
  ByteWriter writer(&bytes);
  for (float radians : rope.radians_per_token) writer.Put(std::bit_cast<std::uint32_t>(radians));
  char text[64];
  std::snprintf(text, sizeof text, "%s@%d+%d:%08x", rope.pairing == RopePairing::kNorm ? "norm" : "neox", rope.offset,
                rope.dims, Crc32c(bytes));
  return text;
}

const char* TypeName(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return "bf16";
    case ElementType::kF16:
      return "f16";
    case ElementType::kF32:
      return "f32";
  }
  return "?";
}

}  // namespace

std::vector<LayoutField> LayoutOf(const EngineInfo& engine) {
  const CacheShape& shape = engine.shape;
  return {
      {"model", engine.model},
      {"revision", engine.revision},
      {"dtype", TypeName(shape.element_type)},
      {"layers", std::to_string(shape.layers.size())},
      {"heads", RunLengths(shape, [](const LayerShape& layer) { return std::to_string(layer.kv_heads); })},
      {"head_dim", RunLengths(shape, HeadDims)},
      {"rope", RunLengths(shape, Rope)},
      {"page", std::to_string(kPageTokens)},
      {"byte_order", std::endian::native == std::endian::little ? "little" : "big"},
      {"format", "1"},
  };
}

std::vector<std::uint64_t> MostStreamBytes(const Codec& codec, const CacheShape& shape, int first_token, int tokens) {
  const CodecInfo& info = codec.info();
  std::vector<std::uint64_t> most(std::size_t(info.stream_count));
  for (const PageAddress& page : PagesOf(shape, first_token, tokens, info.page_tokens, info.heads_per_page)) {
    for (int stream = 0; stream < info.stream_count; ++stream) {
      most[std::size_t(stream)] += codec.MaxBytes(ShapeOf(shape, page), stream);
    }
  }
  return most;
}

}  // namespace lynx
