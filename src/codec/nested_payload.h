// The payloads of `nested`, shared by its two directions and by all kernels.
//
// Payload of stream 0, H channels:
//   2          recent tokens
//   S H E      elements of the sinks
//   2 H        base (FP16) per channel
//   2 H        unit (FP16) per channel
//   then per chunk: H offset bytes, H width bytes, code rows of the anchors of its plain tokens, of the anchors of its
//   recent tokens, of the residuals of its recent tokens
// Payload of stream 1: per chunk the code rows of the residuals of its plain tokens.
#pragma once

#include <algorithm>
#include <cstddef>

#include "codec/elements.h"
#include "codec/page_parts.h"

namespace lynx {

inline constexpr std::size_t kNestedFixedBytes = 2;

// Where the parts of one chunk lie in both payloads. Sizes of a whole page are the beginnings of the chunk behind it.
struct NestedPlace {
  int first = 0;  // tokens of the page: sinks lie before, recent ones from `cut` on
  int cut = 0;
  int end = 0;
  std::size_t scales = 0;
  std::size_t plain_anchor = 0, recent_anchor = 0, recent_residual = 0;
  std::size_t plain_residual = 0;  // in stream 1
  constexpr int plain() const { return cut - first; }
  constexpr int recent() const { return end - cut; }
};

constexpr NestedPlace NestedPlaceOf(const PageDims& dims, const Parts& parts, int anchor_bits, int chunk) {
  const std::size_t channels = std::size_t(dims.channels);
  std::size_t at = kNestedFixedBytes + SinkBytes(dims, parts.sinks) + 4 * channels, later = 0;
  for (int i = 0;; ++i) {
    NestedPlace place;
    place.first = std::clamp(i * kChunkTokens, parts.sinks, dims.tokens);
    place.end = std::min((i + 1) * kChunkTokens, dims.tokens);
    place.cut = std::clamp(dims.tokens - parts.recent, place.first, std::max(place.first, place.end));
    place.scales = at;
    place.plain_residual = later;
    if (i == chunk) {
      place.plain_anchor = at + 2 * channels;
      place.recent_anchor = place.plain_anchor + CodeRowBytes(place.plain(), dims.channels, anchor_bits);
      place.recent_residual = place.recent_anchor + CodeRowBytes(place.recent(), dims.channels, anchor_bits);
      return place;
    }
    at += 2 * channels + CodeRowBytes(place.plain(), dims.channels, anchor_bits) +
          CodeRowBytes(place.recent(), dims.channels, anchor_bits) +
          CodeRowBytes(place.recent(), dims.channels, kNestedBits - anchor_bits);
    later += CodeRowBytes(place.plain(), dims.channels, kNestedBits - anchor_bits);
  }
}

}  // namespace lynx
