#include "codec/nested_codec.h"

#include <algorithm>

#include "base/bytes.h"
#include "codec/elements.h"

namespace lynx {
namespace {

// Payload of stream 0, channels = H:
//   2H  base (FP16) per channel        2H  unit (FP16) per channel
//   then per chunk: H offset bytes, H width bytes, nibble rows of the anchor
// Payload of stream 1: per chunk the nibble rows of the residual.
CodecInfo Info(const std::string& spec) {
  CodecInfo info;
  info.name = "nested";
  info.spec = spec;
  info.stream_count = 2;
  return info;
}

std::size_t PageScaleBytes(int channels) { return 4 * std::size_t(channels); }
std::size_t AnchorOffset(int channels, int chunk) {
  return PageScaleBytes(channels) + chunk * (2 * std::size_t(channels) + NibbleBytes(kChunkTokens, channels));
}

}  // namespace

NestedCodec::NestedCodec(const CacheShape& shape, const CodecKernels& kernels, const std::string& spec)
    : PageCodec(Info(spec), CodecId::kNested, shape), kernels_(kernels) {}

std::size_t NestedCodec::PayloadBytes(const PageDims& dims, int stream) const {
  const std::size_t nibbles = NibbleBytes(dims.tokens, dims.channels);
  if (stream == 1) return nibbles;
  return PageScaleBytes(dims.channels) + dims.chunks() * 2 * std::size_t(dims.channels) + nibbles;
}

std::size_t NestedCodec::WorkBytes(const PageDims& dims) const {
  return 2 * Scratch::BytesFor<float>(dims.chunks() * std::size_t(dims.channels)) +
         4 * Scratch::BytesFor<float>(dims.channels);
}

bool NestedCodec::EncodeValues(const float* values, const PageDims& dims, std::span<std::byte* const> payloads,
                               std::span<std::size_t>, Scratch scratch) const {
  const std::size_t channels = std::size_t(dims.channels);
  float* least = scratch.Take<float>(dims.chunks() * channels);
  float* greatest = scratch.Take<float>(dims.chunks() * channels);
  float* base = scratch.Take<float>(channels);
  float* unit = scratch.Take<float>(channels);
  float* low = scratch.Take<float>(channels);
  float* inverse_cell = scratch.Take<float>(channels);

  // The page's range is the union of its chunks' ranges.
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    kernels_.channel_ranges(values + chunk * kChunkTokens * channels, dims.ChunkTokens(chunk), dims.channels,
                            least + chunk * channels, greatest + chunk * channels);
  }
  for (std::size_t c = 0; c < channels; ++c) {
    float page_least = least[c];
    float page_greatest = greatest[c];
    for (int chunk = 1; chunk < dims.chunks(); ++chunk) {
      page_least = std::min(page_least, least[chunk * channels + c]);
      page_greatest = std::max(page_greatest, greatest[chunk * channels + c]);
    }
    const NestedPageScale scale = NestedPageScaleOf(page_least, page_greatest);
    StoreLittle(scale.base, payloads[0] + 2 * c);
    StoreLittle(scale.unit, payloads[0] + 2 * (channels + c));
    base[c] = F16ToFloat(scale.base);
    unit[c] = F16ToFloat(scale.unit);
  }
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    std::byte* to = payloads[0] + AnchorOffset(dims.channels, chunk);
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t at = chunk * channels + c;
      const NestedChunkScale scale = NestedChunkScaleOf(base[c], unit[c], least[at], greatest[at]);
      to[c] = std::byte(scale.offset);
      to[channels + c] = std::byte(scale.width);
      low[c] = NestedLow(base[c], unit[c], scale.offset);
      const float cell = NestedCell(unit[c], scale.width);
      inverse_cell[c] = cell > 0.0f ? 1.0f / cell : 0.0f;
    }
    kernels_.nested_quantize(values + chunk * kChunkTokens * channels, dims.ChunkTokens(chunk), dims.channels, low,
                             inverse_cell, reinterpret_cast<std::uint8_t*>(to + 2 * channels),
                             reinterpret_cast<std::uint8_t*>(payloads[1] + NibbleOffset(chunk, dims.channels)));
  }
  return true;
}

Status NestedCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch) const {
  return AllF16Finite(payloads[0].data(), 2 * dims.channels) ? Ok()
                                                             : Corrupt("page stream has a scale that is not finite");
}

void NestedCodec::DecodeChunk(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const {
  const std::size_t channels = std::size_t(dims.channels);
  float* low = scratch.Take<float>(channels);
  float* cell = scratch.Take<float>(channels);
  const std::byte* scales = payloads[0].data();
  const std::byte* from = scales + AnchorOffset(dims.channels, chunk);
  for (std::size_t c = 0; c < channels; ++c) {
    const float unit = LoadF16(scales + 2 * (channels + c));
    low[c] = NestedLow(LoadF16(scales + 2 * c), unit, std::uint8_t(from[c]));
    cell[c] = NestedCell(unit, std::uint8_t(from[channels + c]));
  }
  const std::byte* residual = payloads.size() > 1 ? payloads[1].data() + NibbleOffset(chunk, dims.channels) : nullptr;
  kernels_.nested_reconstruct(reinterpret_cast<const std::uint8_t*>(from + 2 * channels),
                              reinterpret_cast<const std::uint8_t*>(residual), dims.ChunkTokens(chunk), dims.channels,
                              low, cell, rows);
}

}  // namespace lynx
