// Numbers that baselines keep in their payloads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "codec/bit_io.h"
#include "codec/elements.h"
#include "codec/rounding.h"

namespace lynx {

// Values of a page, [token][channel], that are coded together.
struct Strided {
  std::size_t first;
  std::size_t stride;
  int count;
  std::size_t At(int i) const { return first + std::size_t(i) * stride; }
};

inline void PutBf16(float value, BitWriter* out) { out->Put(FloatToBf16(value), 16); }
inline float GetBf16(BitReader* in) { return Bf16ToFloat(std::uint16_t(in->Get(16))); }

// A stored number is used as it was stored.
inline float PutF16(std::uint16_t half, BitWriter* out) {
  out->Put(half, 16);
  return F16ToFloat(half);
}
inline float GetF16(BitReader* in) { return F16ToFloat(std::uint16_t(in->Get(16))); }

// `levels` equal steps from the least to the greatest of some values, both as FP16, rounded outwards.
struct Grid {
  float low = 0;
  float step = 0;
  int levels = 0;

  int LevelOf(float value) const {
    const int level = step > 0.0f ? NearestInteger((value - low) / step) : 0;
    return std::clamp(level, 0, levels - 1);
  }
  float ValueOf(float level) const { return low + level * step; }
};
inline Grid PutGrid(float least, float greatest, int levels, BitWriter* out) {
  Grid grid;
  grid.levels = levels;
  grid.low = PutF16(F16Down(least), out);
  grid.step = PutF16(F16Up((greatest - grid.low) / float(levels - 1)), out);
  return grid;
}
inline Grid GetGrid(int levels, BitReader* in) {
  Grid grid;
  grid.levels = levels;
  grid.low = GetF16(in);
  grid.step = GetF16(in);
  return grid;
}

}  // namespace lynx
