// The definition of the `lynx` codec's arithmetic, docs/codec.md §3.5: plain, element by element.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "codec/lynx_tables.h"

namespace lynx {

inline constexpr int kLynxResidualBits = 4;  // r
// Steps are 2^(index / 8); the least is chosen so that no arithmetic on it meets denormals.
inline constexpr int kLynxLeastStep = -800, kLynxGreatestStep = 255;
// From the least step that an encoder takes, 2^-16 of the power of two above the greatest magnitude, to that power.
inline constexpr int kLynxStepRange = 128;
// Channels of a head differ in steps by multiples of this.
inline constexpr int kLynxOffsetUnit = 2;
inline constexpr int kLynxOpenOrder = 1;  // of the Golomb code above |8|: a tail falls by about e per step or two
// Levels and means that a decoder accepts; an encoder stays below 2^20 and 2^22.
inline constexpr std::int32_t kLynxGreatestLevel = 1 << 24;

// Mean distance from the mean, over the tokens from the first to the last: unlike the deviation in squares it does not
// let one loud token make the step of all others.
float LynxSpreadOf(const float* values, int tokens, std::size_t stride);

// The step whose rate is nearest to `bits` per value, by the static tables, for channels of these spreads (reverse
// water-filling); not below `least`.
int LynxStepOf(std::span<const float> spreads, double bits, int least);
// The least step that an encoder takes for values up to this magnitude.
int LynxLeastStepOf(float magnitude);

// The fine cell floor(16 x / step); |result| <= 2^20 + 1 with steps that an encoder takes.
inline std::int32_t LynxCellOf(float x, float per_cell) { return std::int32_t(std::floor(x * per_cell)); }
// Mean of a channel's cells on the grid of step / 4, nearest.
std::int32_t LynxMeanOf(std::int64_t sum, int tokens);
// Twice the distance of a cell's centre from the mean, in 32nds of a step.
inline std::int32_t LynxDistanceOf(std::int32_t cell, std::int32_t mean) { return std::abs(2 * cell + 1 - 8 * mean); }
std::int32_t LynxCellSum(const std::int32_t* cells, int tokens, std::size_t stride);
std::int32_t LynxDistanceSum(const std::int32_t* cells, int tokens, std::size_t stride, std::int32_t mean);

// n = floor(16 e + 8) with e = (x - mean) / step; the anchor level is n >> 4.
constexpr std::int32_t LynxNested(std::int32_t cell, std::int32_t mean) { return cell + 8 - 4 * mean; }

// A level in a channel of this shift is a high part, which its symbol tells (the outermost symbols with a Golomb code
// after them), and `shift` low bits.
constexpr std::int32_t LynxHighOf(std::int32_t level, int shift) { return (level + ((1 << shift) >> 1)) >> shift; }
constexpr std::uint8_t LynxSymbolOf(std::int32_t level, int shift) {
  const std::int32_t high = LynxHighOf(level, shift);
  const std::int32_t bounded = high < -kLynxOutermost ? -kLynxOutermost : high > kLynxOutermost ? kLynxOutermost : high;
  return std::uint8_t(bounded + kLynxOutermost);
}
constexpr bool LynxIsOutermost(std::uint8_t symbol) { return symbol == 0 || symbol == 2 * kLynxOutermost; }
constexpr std::uint32_t LynxLowOf(std::int32_t level, int shift) {
  return std::uint32_t(level + ((1 << shift) >> 1)) & ((1u << shift) - 1u);
}
// A cell becomes n; its symbol and residual.
inline void LynxSplit(std::int32_t* cell, std::int32_t mean, int shift, std::uint8_t* symbol, std::uint8_t* residual) {
  *cell = LynxNested(*cell, mean);
  *symbol = LynxSymbolOf(*cell >> kLynxResidualBits, shift);
  *residual = std::uint8_t(*cell & 15);
}

// The centre of what `known` of the 4 residual bits leave open, in 32nds of a step, the mean included, is the sum of
//   32 ((symbol - 8) 2^shift - floor(2^shift / 2)) + 8 mean - 16
//   32 times what open bits add to the level
//   the known bits of the residual, x, times 2^(5 - known)
//   2^(4 - known).
constexpr std::int32_t LynxCoarseCentre(std::uint8_t symbol, int shift, std::int32_t mean) {
  return 32 * ((int(symbol) - kLynxOutermost) * (1 << shift) - ((1 << shift) >> 1)) + 8 * mean - 16;
}
constexpr std::int32_t LynxFineCentre(std::int32_t x, int known) { return x * (1 << (5 - known)); }
constexpr std::int32_t LynxHalfCell(int known) { return 1 << (kLynxResidualBits - known); }
constexpr float LynxValueOf(std::int32_t centre, float step) { return float(centre) * step; }

}  // namespace lynx
