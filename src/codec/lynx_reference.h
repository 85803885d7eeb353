// The definition of the `lynx` codec's arithmetic, docs/codec.md §3.5: plain, element by element.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

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
constexpr float LynxSpreadOf(const float* values, int tokens, std::size_t stride) {
  float sum = 0.0f;
  for (int token = 0; token < tokens; ++token) sum += values[std::size_t(token) * stride];
  const float mean = sum / float(tokens);
  float spread = 0.0f;
  for (int token = 0; token < tokens; ++token) {
    const float away = values[std::size_t(token) * stride] - mean;
    spread += away < 0.0f ? -away : away;
  }
  return spread / float(tokens);
}

// The least number from low to high whose rate, which falls, is at most `bits`; high when there is none.
template <typename Rate>
constexpr int LynxLeastWithin(const Rate& rate, double bits, int low, int high) {
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (rate(middle) <= bits) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The step whose rate is nearest to `bits` per value, by the static tables, for channels whose spreads are 2^(eighths /
// 8) (reverse water-filling); not below `least`.
constexpr int LynxStepOf(const LynxTables& tables, const std::int16_t* eighths, int channels, double bits, int least) {
  const auto rate = [&](int step) {
    double sum = 0.0;
    for (int c = 0; c < channels; ++c) sum += tables.Bits(eighths[c] - step);
    return sum / double(channels);
  };
  // The rate falls as the step grows: the least step that stays within `bits`, or the one before it if that is nearer.
  const int step = LynxLeastWithin(rate, bits, least, kLynxGreatestStep);
  const bool finer = step > least && rate(step - 1) - bits < bits - rate(step);
  return finer ? step - 1 : step;
}
// The least step that an encoder takes for values up to this magnitude: steps below 2^-16 of the greatest magnitude are
// finer than any element type here, and levels stay small.
constexpr int LynxLeastStepOf(float magnitude) {
  const int exponent = int(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;  // below -126 for denormals and 0
  return std::max(kLynxLeastStep, 8 * (exponent + 1 - 16));
}

// What an encoder is to spend on a page.
struct LynxRate {
  double bits = 0.0;  // per value, for symbols
  // With a profile: the steps that it wants from the page's first channel on, each to be made `add` greater.
  const std::int16_t* steps = nullptr;
  int add = 0;
};
// The steps of one head: those that the profile wants, on the grid of offsets and not below what an encoder takes; or
// one for all, for which the spreads are needed.
constexpr void LynxChooseSteps(const LynxTables& tables, const LynxRate& rate, const float* magnitudes,
                               const std::int16_t* eighths, int first, int head_dim, std::int16_t* all_steps) {
  const int least = LynxLeastStepOf(*std::max_element(magnitudes + first, magnitudes + first + head_dim));
  std::int16_t* steps = all_steps + first;
  if (rate.steps == nullptr) {
    const int step = LynxStepOf(tables, eighths + first, head_dim, rate.bits, least);
    for (int c = 0; c < head_dim; ++c) steps[c] = std::int16_t(step);
    return;
  }
  const std::int16_t* wanted = rate.steps + first;
  const int add = std::min(rate.add, kLynxGreatestStep - *std::max_element(wanted, wanted + head_dim));
  // Neither finer than an encoder takes nor coarser than the head's magnitude, above which only residuals would suffer;
  // in whole units, so that offsets stay on their grid.
  const int greatest = least + kLynxStepRange;
  const auto units = [](int by) { return (by + kLynxOffsetUnit - 1) / kLynxOffsetUnit * kLynxOffsetUnit; };
  for (int c = 0; c < head_dim; ++c) {
    const int step = wanted[c] + add;
    steps[c] = std::int16_t(step < least      ? step + units(least - step)
                            : step > greatest ? step - units(step - greatest)
                                              : step);
  }
}

// The fine cell floor(16 x / step); |result| <= 2^20 + 1 with steps that an encoder takes.
constexpr std::int32_t LynxCellOf(float x, float per_cell) {
  const float cells = x * per_cell;
  const auto whole = std::int32_t(cells);
  return float(whole) > cells ? whole - 1 : whole;
}
// Mean of a channel's cells on the grid of step / 4, nearest: the centre of cell N is (2 N + 1) / 32 steps, so
// floor((2 sum + 5 T) / (8 T)).
constexpr std::int32_t LynxMeanOf(std::int64_t sum, int tokens) {
  const std::int64_t numerator = 2 * sum + 5 * tokens, denominator = 8 * tokens;
  const std::int64_t offset = std::int64_t{1} << 40;  // makes the division a floor
  return std::int32_t((numerator + offset * denominator) / denominator - offset);
}
// Twice the distance of a cell's centre from the mean, in 32nds of a step.
constexpr std::int32_t LynxDistanceOf(std::int32_t cell, std::int32_t mean) {
  const std::int32_t away = 2 * cell + 1 - 8 * mean;
  return away < 0 ? -away : away;
}
constexpr std::int32_t LynxCellSum(const std::int32_t* cells, int tokens, std::size_t stride) {
  std::int32_t sum = 0;
  for (int token = 0; token < tokens; ++token) sum += cells[std::size_t(token) * stride];
  return sum;
}
constexpr std::int32_t LynxDistanceSum(const std::int32_t* cells, int tokens, std::size_t stride, std::int32_t mean) {
  std::int32_t sum = 0;
  for (int token = 0; token < tokens; ++token) sum += LynxDistanceOf(cells[std::size_t(token) * stride], mean);
  return sum;
}

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
constexpr void LynxSplit(std::int32_t* cell, std::int32_t mean, int shift, std::uint8_t* symbol,
                         std::uint8_t* residual) {
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
