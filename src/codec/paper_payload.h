// The payloads of `paper` and `paper127`, shared by their two directions and by all kernels.
//
// Payload of stream 0, channels = H:
//   2H  gamma_min (FP16) per channel   2H  gamma_scale (FP16) per channel
//   then per chunk: 2H mu (FP16), 2H sigma (FP16), nibble rows of the anchor's low four bits and, in paper127, bit rows
//   of its fifth bit: tokens 8i … 8i + 7 of a channel share byte [i][channel], token 8i in bit 0
// Payload of stream 1: per chunk the nibble rows of the residual.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/elements.h"
#include "codec/page_parts.h"
#include "codec/paper_levels.h"

namespace lynx {

// The text's full scale of 127 needs 18 anchor codes, which do not fit four bits: k120 has exactly 16, k127 takes a
// fifth bit.
enum class PaperReading { k120, k127 };

constexpr std::size_t PaperAnchorBytes(PaperReading reading, int tokens, int channels) {
  return RowBytes(tokens, channels, 4) + (reading == PaperReading::k127 ? RowBytes(tokens, channels, 1) : 0);
}
// Where a chunk begins in stream 0, and in stream 1.
constexpr std::size_t PaperChunkOffset(PaperReading reading, int channels, int chunk) {
  return 4 * std::size_t(channels) +
         chunk * (4 * std::size_t(channels) + PaperAnchorBytes(reading, kChunkTokens, channels));
}
constexpr std::size_t PaperResidualOffset(int channels, int chunk) {
  return std::size_t(chunk) * RowBytes(kChunkTokens, channels, 4);
}
constexpr std::size_t PaperPayloadBytes(PaperReading reading, const PageDims& dims, int stream) {
  if (stream == 1) return RowBytes(dims.tokens, dims.channels, 4);
  return 4 * std::size_t(dims.channels) * (1 + dims.chunks()) + PaperAnchorBytes(reading, dims.tokens, dims.channels);
}

// A scale of 0 belongs to values that are all equal: they are divided by 1 and stay 0.
constexpr float PaperDivisor(float scale) { return scale > 0.0f ? scale : 1.0f; }

constexpr int PaperGetAnchor(PaperReading reading, const std::byte* anchor, const std::byte* fifth, int channels,
                             int token, int channel) {
  const int nibble = GetRow(anchor, channels, 4, token, channel);
  if (reading == PaperReading::k120) return SignedNibble(nibble);
  return nibble - 16 * GetRow(fifth, channels, 1, token, channel);
}

// The scalars of a channel in a chunk.
struct PaperScales {
  float gamma_min, gamma_scale, mu, sigma;
};
// residual: 0 when only the anchor is at hand.
constexpr float PaperValueOf(const PaperLevels& levels, int anchor, int residual, const PaperScales& scales) {
  const float magnitude = levels.ValueOf(PaperJoin(PaperCoarseOf(anchor), residual));
  const float x = PaperIsNegative(anchor) ? -magnitude : magnitude;
  return scales.gamma_min + (scales.mu + x * scales.sigma) * scales.gamma_scale;
}

}  // namespace lynx
