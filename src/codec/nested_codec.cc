#include "codec/nested_codec.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/float16.h"
#include "codec/elements.h"
#include "codec/lynx_kernels.h"
#include "codec/nested_payload.h"
#include "codec/page_io.h"
#include "codec/page_parts.h"

namespace lynx {
namespace {

CodecInfo Info(const std::string& spec) {
  CodecInfo info;
  info.name = "nested";
  info.spec = spec;
  info.stream_count = 2;
  return info;
}

// Per channel, both ways.
struct PageScales {
  PageScales(int channels, Scratch* scratch)
      : base(scratch->Take<float>(std::size_t(channels))), unit(scratch->Take<float>(std::size_t(channels))) {}
  float* base;
  float* unit;
};

// The range of a page is the union of its chunks' ranges.
void JoinRanges(const float* least, const float* greatest, int chunks, int channels, float* page_least,
                float* page_greatest) {
  std::copy_n(least, channels, page_least);
  std::copy_n(greatest, channels, page_greatest);
  for (int chunk = 1; chunk < chunks; ++chunk) {
    for (int c = 0; c < channels; ++c) {
      page_least[c] = std::min(page_least[c], least[chunk * channels + c]);
      page_greatest[c] = std::max(page_greatest[c], greatest[chunk * channels + c]);
    }
  }
}

}  // namespace

NestedCodec::NestedCodec(const CacheShape& shape, const CodecKernels& kernels, const NestedParameters& parameters,
                         const std::string& spec)
    : PageCodec(Info(spec), CodecId::kNested, shape), kernels_(kernels), parameters_(parameters) {
  if (parameters.unrope) ropes_.emplace(shape, kPageTokens);
}

const RopeTable* NestedCodec::RopeOf(const PageAddress& address) const {
  return ropes_.has_value() ? ropes_->Of(address) : nullptr;
}

std::size_t NestedCodec::PayloadBytes(const PageDims& dims, int stream) const {
  const std::size_t expected = ExpectedPayloadBytes(dims, stream);
  if (stream == 1) return expected;
  // Sinks, all residuals, and one more row of bytes per piece where the first recent token cuts a chunk.
  const auto pieces = CodeRowBytes(1, dims.channels, parameters_.anchor_bits);
  return expected + SinkBytes(dims, std::min(kSinks, dims.tokens)) + ExpectedPayloadBytes(dims, 1) + pieces;
}

std::size_t NestedCodec::ExpectedPayloadBytes(const PageDims& dims, int stream) const {
  const NestedPlace end = NestedPlaceOf(dims, {0, dims.tokens, 0}, parameters_.anchor_bits, dims.chunks());
  return stream == 0 ? end.scales : end.plain_residual;
}

std::size_t NestedCodec::WorkBytes(const PageDims& dims) const {
  const std::size_t channels = std::size_t(dims.channels);
  return (ropes_.has_value() ? Scratch::BytesFor<float>(dims.elements()) : 0) +
         2 * Scratch::BytesFor<float>(std::size_t(dims.chunks()) * channels) + 4 * Scratch::BytesFor<float>(channels);
}

bool NestedCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                             std::span<std::size_t> payload_bytes, Scratch scratch) const {
  Parts parts = PartsOf(dims);
  if (parts.coded == 0) return false;
  parts.recent = RecentOf(dims, parts.coded, parameters_.recent);
  const std::size_t channels = std::size_t(dims.channels);
  const int anchor_bits = parameters_.anchor_bits;
  if (const RopeTable* rope = RopeOf(dims.address)) {
    float* unrotated = scratch.Take<float>(dims.elements());
    std::copy_n(ValuesOf(rows), dims.elements(), unrotated);
    TurnHeads(kernels_.lynx->unrotate, rope, dims, parts.sinks, dims.tokens,
              unrotated + std::size_t(parts.sinks) * channels);
    rows = RowsOf(unrotated, dims.channels);
  }
  const PageScales scales(dims.channels, &scratch);
  float* least = scratch.Take<float>(std::size_t(dims.chunks()) * channels);
  float* greatest = scratch.Take<float>(std::size_t(dims.chunks()) * channels);
  float* first = scratch.Take<float>(channels);  // the page's least, then of a chunk the centre of cell 0
  float* inverse_cell = scratch.Take<float>(channels);

  std::byte* to = payloads[0];
  StoreLittle(std::uint16_t(parts.recent), to);
  for (int token = 0; token < parts.sinks; ++token) {
    CopyElements(rows.From(token).data, rows.type, channels, dims.element_type,
                 to + kNestedFixedBytes + SinkBytes(dims, token));
  }
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    const NestedPlace place = NestedPlaceOf(dims, parts, anchor_bits, chunk);
    kernels_.channel_ranges(rows.From(place.first), place.end - place.first, dims.channels,
                            least + std::size_t(chunk) * channels, greatest + std::size_t(chunk) * channels);
  }
  const std::size_t sink_bytes = SinkBytes(dims, parts.sinks), ranges = std::size_t(dims.chunks()) * channels;
  // Nobody has looked at the values of BF16 rows before.
  if (rows.type == ElementType::kBf16 &&
      !(AllWithin(least, ranges, kMaxMagnitude) && AllWithin(greatest, ranges, kMaxMagnitude) &&
        SinksWithin(to + kNestedFixedBytes, sink_bytes / 2, ElementType::kBf16))) {
    return false;
  }
  JoinRanges(least, greatest, dims.chunks(), dims.channels, first, inverse_cell);
  std::byte* page_scales = to + kNestedFixedBytes + sink_bytes;
  kernels_.nested_page(first, inverse_cell, dims.channels, page_scales);
  kernels_.floats_of_halfs(page_scales, dims.channels, scales.base);
  kernels_.floats_of_halfs(page_scales + 2 * channels, dims.channels, scales.unit);
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    const NestedPlace place = NestedPlaceOf(dims, parts, anchor_bits, chunk);
    const std::size_t at = std::size_t(chunk) * channels;
    kernels_.nested_scales(scales.base, scales.unit, least + at, greatest + at, dims.channels, to + place.scales,
                           to + place.scales + channels, first, inverse_cell);
    kernels_.nested_quantize(rows.From(place.first), place.plain(), dims.channels, anchor_bits, first, inverse_cell,
                             to + place.plain_anchor, payloads[1] + place.plain_residual);
    kernels_.nested_quantize(rows.From(place.cut), place.recent(), dims.channels, anchor_bits, first, inverse_cell,
                             to + place.recent_anchor, to + place.recent_residual);
  }
  const NestedPlace end = NestedPlaceOf(dims, parts, anchor_bits, dims.chunks());
  payload_bytes[0] = end.scales;
  payload_bytes[1] = end.plain_residual;
  return true;
}

Status NestedCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const {
  Parts parts = PartsOf(dims);
  if (payloads[0].size() >= kNestedFixedBytes) parts.recent = LoadLittle<std::uint16_t>(payloads[0].data());
  parts.recent = std::min(parts.recent, parts.coded + 1);  // one too many is refused below
  const NestedPlace end = NestedPlaceOf(dims, parts, parameters_.anchor_bits, dims.chunks());
  if (parts.coded == 0 || parts.recent > parts.coded || payloads[0].size() != end.scales ||
      (payloads.size() > 1 && payloads[1].size() != end.plain_residual)) {
    return Corrupt("page stream payload does not fit the page's shape");
  }
  const std::size_t sink_elements = std::size_t(parts.sinks) * std::size_t(dims.channels);
  if (!SinksWithin(payloads[0].data() + kNestedFixedBytes, sink_elements, dims.element_type)) {
    return Corrupt("page stream has a sink that is not finite or too large");
  }
  const std::byte* from = payloads[0].data() + kNestedFixedBytes + SinkBytes(dims, parts.sinks);
  const PageScales scales(dims.channels, &scratch);
  if (!kernels_.floats_of_halfs(from, dims.channels, scales.base) ||
      !kernels_.floats_of_halfs(from + 2 * dims.channels, dims.channels, scales.unit)) {
    return Corrupt("page stream has a scale that is not finite");
  }
  return Ok();
}

void NestedCodec::DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const {
  const PageScales scales(dims.channels, &scratch);  // CheckPayloads left them there
  float* low = scratch.Take<float>(std::size_t(dims.channels));
  float* cell = scratch.Take<float>(std::size_t(dims.channels));
  Parts parts = PartsOf(dims);
  parts.recent = LoadLittle<std::uint16_t>(payloads[0].data());
  const NestedPlace place = NestedPlaceOf(dims, parts, parameters_.anchor_bits, chunk);
  const int begin = chunk * kChunkTokens;
  const std::byte* from = payloads[0].data();

  for (int token = begin; token < place.first; ++token) {
    CopyElements(from + kNestedFixedBytes + SinkBytes(dims, token), dims.element_type, std::size_t(dims.channels),
                 rows.type, rows.From(token - begin).data);
  }
  kernels_.nested_grid(scales.base, scales.unit, from + place.scales, from + place.scales + dims.channels,
                       dims.channels, low, cell);
  kernels_.nested_reconstruct(from + place.plain_anchor,
                              payloads.size() > 1 ? payloads[1].data() + place.plain_residual : nullptr, place.plain(),
                              dims.channels, parameters_.anchor_bits, low, cell, rows.From(place.first - begin));
  kernels_.nested_reconstruct(from + place.recent_anchor, from + place.recent_residual, place.recent(), dims.channels,
                              parameters_.anchor_bits, low, cell, rows.From(place.cut - begin));
  if (const RopeTable* rope = RopeOf(dims.address)) {
    TurnHeads(kernels_.lynx->rotate, rope, dims, place.first, place.end, ValuesOf(rows.From(place.first - begin)));
  }
}

}  // namespace lynx
