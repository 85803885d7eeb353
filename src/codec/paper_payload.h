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
#include "codec/page_codec.h"
#include "codec/paper_levels.h"

namespace lynx {

// The text's full scale of 127 needs 18 anchor codes, which do not fit four bits: k120 has exactly 16, k127 takes a
// fifth bit.
enum class PaperReading { k120, k127 };

constexpr std::size_t PaperAnchorBytes(PaperReading reading, int tokens, int channels) {
  const std::size_t fifth_bits = reading == PaperReading::k127 ? std::size_t(tokens + 7) / 8 * channels : 0;
  return NibbleBytes(tokens, channels) + fifth_bits;
}
// Where a chunk begins in stream 0; in stream 1 NibbleOffset.
constexpr std::size_t PaperChunkOffset(PaperReading reading, int channels, int chunk) {
  return 4 * std::size_t(channels) +
         chunk * (4 * std::size_t(channels) + PaperAnchorBytes(reading, kChunkTokens, channels));
}
constexpr std::size_t PaperPayloadBytes(PaperReading reading, const PageDims& dims, int stream) {
  if (stream == 1) return NibbleBytes(dims.tokens, dims.channels);
  return 4 * std::size_t(dims.channels) * (1 + dims.chunks()) + PaperAnchorBytes(reading, dims.tokens, dims.channels);
}

// A scale of 0 belongs to values that are all equal: they are divided by 1 and stay 0.
constexpr float PaperDivisor(float scale) { return scale > 0.0f ? scale : 1.0f; }

constexpr void PutNibble(std::byte* codes, int channels, int token, int channel, int code) {
  codes[std::size_t(token / 2) * channels + channel] |= std::byte((code & 15) << (token % 2 * 4));
}

constexpr void PutFifthBit(std::byte* bits, int channels, int token, int channel, int code) {
  bits[std::size_t(token / 8) * channels + channel] |= std::byte((code >> 4 & 1) << (token % 8));
}

constexpr int GetNibble(const std::byte* codes, int channels, int token, int channel) {
  return int(codes[std::size_t(token / 2) * channels + channel] >> (token % 2 * 4)) & 15;
}

constexpr int GetFifthBit(const std::byte* bits, int channels, int token, int channel) {
  return int(bits[std::size_t(token / 8) * channels + channel] >> (token % 8)) & 1;
}

constexpr int PaperGetAnchor(PaperReading reading, const std::byte* anchor, const std::byte* fifth, int channels,
                             int token, int channel) {
  const int nibble = GetNibble(anchor, channels, token, channel);
  if (reading == PaperReading::k120) return SignedNibble(nibble);
  return nibble - 16 * GetFifthBit(fifth, channels, token, channel);
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
