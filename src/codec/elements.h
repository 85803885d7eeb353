// One-element definitions: the arithmetic that docs/codec.md prescribes, shared by every kernel. Plain IEEE single
// precision in the order written, no contraction.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "codec/rounding.h"

namespace lynx {

// The nearest integer, ties to even, of |x| < 2^22: adding 1.5 * 2^23 leaves it in the low mantissa bits.
constexpr int NearestInteger(float x) {
  return std::bit_cast<std::int32_t>(x + 12582912.0f) - std::bit_cast<std::int32_t>(12582912.0f);
}

// 1 / x, or 0 for a step of 0.
constexpr float InverseOf(float x) { return x > 0.0f ? 1.0f / x : 0.0f; }

// --- nested ---

inline constexpr int kNestedBits = 8;  // of n, anchor and residual together
inline constexpr float kNestedCells = 256.0f;

// The two scalars of a channel in a page: chunks sit on the grid base + unit * {0, 1, ... 255}.
struct NestedPageScale {
  std::uint16_t base;
  std::uint16_t unit;
};
constexpr NestedPageScale NestedPageScaleOf(float least, float greatest) {
  const std::uint16_t base = F16Down(least);
  return {base, F16Up((greatest - F16ToFloat(base)) / 255.0f)};
}

// The two scalars of a channel in a chunk: the chunk's cells cover [low, low + (width + 1) * unit].
struct NestedChunkScale {
  std::uint8_t offset;
  std::uint8_t width;
};
constexpr float NestedLow(float base, float unit, std::uint8_t offset) { return base + float(offset) * unit; }
constexpr float NestedCell(float unit, std::uint8_t width) { return float(width + 1) * unit / kNestedCells; }
constexpr NestedChunkScale NestedChunkScaleOf(float base, float unit, float least, float greatest) {
  if (unit == 0.0f) return {0, 0};
  // Neither quotient is negative or above 2^9, so conversion to int is floor, without a call.
  const float offset = (least - base) / unit;
  const auto offset_code = std::uint8_t(offset < 255.0f ? offset : 255.0f);
  const float end = (greatest - NestedLow(base, unit, offset_code)) / unit;
  int width = int(end);
  width += float(width) < end ? 1 : 0;
  return {offset_code, std::uint8_t(std::clamp(width, 1, 256) - 1)};
}

// What an unknown rest of `bits` bits of n adds on average; the centre of the cells that begin with n = 0.
constexpr float NestedHalf(int bits) { return 0.5f * float(1 << bits); }
constexpr float NestedFirst(float low, float half, float cell) { return low + half * cell; }
// The number of the cell whose centre is nearest; first: that of cell 0.
constexpr int NestedQuantize(float value, float first, float inverse_cell) {
  const float position = (value - first) * inverse_cell;
  const float above = position > 0.0f ? position : 0.0f;
  return NearestInteger(above < 255.0f ? above : 255.0f);
}
// What the encoder needs of a channel in a chunk: its scalars, the centre of its first cell, 1 / cell (or 0).
struct NestedEncoderGrid {
  NestedChunkScale scale;
  float first;
  float inverse_cell;
};
constexpr NestedEncoderGrid NestedEncoderGridOf(float base, float unit, float least, float greatest) {
  const NestedChunkScale scale = NestedChunkScaleOf(base, unit, least, greatest);
  const float cell = NestedCell(unit, scale.width);
  return {scale, NestedFirst(NestedLow(base, unit, scale.offset), NestedHalf(0), cell), InverseOf(cell)};
}
constexpr float NestedCentre(int n, float first, float cell) { return first + float(n) * cell; }

// --- int8, int4 ---

constexpr std::uint16_t IntegerStepOf(float magnitude, float greatest_code) { return F16Up(magnitude / greatest_code); }

// A nibble as a signed number.
constexpr int SignedNibble(int nibble) { return (nibble ^ 8) - 8; }

}  // namespace lynx
