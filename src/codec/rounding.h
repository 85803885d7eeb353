// FP16 metadata: rounded outwards, so that the range it describes never loses a value, and read back from payloads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/float16.h"

namespace lynx {

// Halfs around a finite value with |value| <= 65504: the largest one not above it, the smallest one not below it.
constexpr std::uint16_t F16Down(float value) {
  const std::uint16_t half = FloatToF16(value);
  if (F16ToFloat(half) <= value) return half;
  return std::uint16_t((half & 0x8000u) != 0 ? half + 1 : half - 1);
}

constexpr std::uint16_t F16Up(float value) {
  const std::uint16_t half = FloatToF16(value);
  if (F16ToFloat(half) >= value) return half;
  return std::uint16_t((half & 0x8000u) != 0 ? half - 1 : half + 1);
}

constexpr bool F16IsFinite(std::uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

constexpr float LoadF16(const std::byte* from) { return F16ToFloat(LoadLittle<std::uint16_t>(from)); }

// Of `count` FP16 numbers, one after the other.
inline bool AllF16Finite(const std::byte* from, int count) {
  for (int i = 0; i < count; ++i) {
    if (!F16IsFinite(LoadLittle<std::uint16_t>(from + 2 * i))) return false;
  }
  return true;
}

}  // namespace lynx
