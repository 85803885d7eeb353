// The definition of the `lynx` codec's arithmetic, docs/codec.md §3.5: plain, element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/bit_io.h"
#include "codec/lynx_tables.h"

namespace lynx {

inline constexpr int kLynxResidualBits = 4;  // r
// Steps are 2^(index / 8); the least is chosen so that no arithmetic on it meets denormals.
inline constexpr int kLynxLeastStep = -800, kLynxGreatestStep = 255;
// Channels of a head differ in steps by multiples of this.
inline constexpr int kLynxOffsetUnit = 2;
// Levels and means that a decoder accepts; an encoder stays below 2^20 and 2^22.
inline constexpr std::int32_t kLynxGreatestLevel = 1 << 24;

// Rows [token][channel] of one head inside wider rows.
struct HeadRows {
  int tokens = 0;
  int head_dim = 0;
  std::size_t stride = 0;
};

// The step whose rate is nearest to `bits` per value, by the static tables (reverse water-filling over the channels).
int LynxStepOf(const float* values, const HeadRows& head, double bits);
// The least step that an encoder takes for these values.
int LynxLeastStepOf(const float* values, const HeadRows& head);

// Fine cells floor(16 x / step), rows [token][channel], one step per channel.
void LynxCells(const float* values, int tokens, int channels, const std::int16_t* steps, std::int32_t* cells);

// Mean of a channel's cells on the grid of step / 4, nearest, and its class: mean magnitude around that.
struct LynxChannel {
  std::int32_t mean = 0;
  int channel_class = 0;
};
LynxChannel LynxChannelOf(const std::int32_t* cells, int tokens, std::size_t stride);

// n = floor(16 e + 8) with e = (x - mean) / step; the anchor level is n >> 4.
inline std::int32_t LynxNested(std::int32_t cell, std::int32_t mean) { return cell + 8 - 4 * mean; }

// A level in a channel of this shift is a high part, which its symbol tells (the outermost symbols with a Golomb code
// after them), and `shift` low bits.
inline std::uint8_t LynxSymbolOf(std::int32_t level, int shift) {
  const std::int32_t high = (level + ((1 << shift) >> 1)) >> shift;
  const std::int32_t bounded = high < -kLynxOutermost ? -kLynxOutermost : high > kLynxOutermost ? kLynxOutermost : high;
  return std::uint8_t(bounded + kLynxOutermost);
}
void LynxPutHigh(std::int32_t level, int shift, BitWriter* bits);
inline std::uint32_t LynxLowOf(std::int32_t level, int shift) {
  return std::uint32_t(level + ((1 << shift) >> 1)) & ((1u << shift) - 1u);
}
// Below 2^31 + 8 in magnitude.
std::int64_t LynxHighOf(std::uint8_t symbol, BitReader* bits);
inline std::int32_t LynxLevelOf(std::int32_t high, std::uint32_t low, int shift) {
  return high * (1 << shift) + std::int32_t(low) - ((1 << shift) >> 1);
}

// The centre of what `known` of the 4 residual bits leave open, in 32nds of a step, the mean included.
inline std::int32_t LynxCentre(std::int32_t prefix, int known, std::int32_t mean) {
  return ((2 * prefix + 1) << (kLynxResidualBits - known)) - (1 << kLynxResidualBits) + 8 * mean;
}

}  // namespace lynx
