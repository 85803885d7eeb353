// The one static table set of the `lynx` codec: how probable each symbol is in a channel of a given spread. Generated
// from a density by IEEE basic operations alone: the same on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/portable_math.h"

namespace lynx {

inline constexpr int kLynxSymbols = 17;  // -8 … 8 as 0 … 16; the outer two mean "8 or more" and have open bits
inline constexpr int kLynxOutermost = 8;
inline constexpr int kLynxProbabilityBits = 12;

// A channel's class tells its mean magnitude in steps, 2^((class - 16) / 4). From class 16 on, all `Shift` octaves
// above it share four tables: the low bits of a level are open.
inline constexpr int kLynxUnitClass = 16;
inline constexpr int kLynxTables = kLynxUnitClass + 4;
inline constexpr int kLynxClasses = kLynxUnitClass + 4 * 20;
constexpr int LynxShift(int channel_class) {
  return channel_class < kLynxUnitClass ? 0 : (channel_class - kLynxUnitClass) / 4;
}
constexpr int LynxTableOf(int channel_class) { return channel_class - 4 * LynxShift(channel_class); }

// 2^(eighths / 8) in single precision; eighths in [-1008, 1023].
float EighthOctave(int eighths);
// The nearest per_octave * log2(value), from 2^-100 on; value >= 0.
constexpr int OctavesOf(float value, int per_octave) {
  if (!(value >= 0x1p-100f)) return -100 * per_octave;
  const double octaves = PortableLog(double(value)) * (per_octave / 0.6931471805599453);
  return int(octaves + 128 * per_octave + 0.5) - 128 * per_octave;
}
constexpr int EighthOctavesOf(float value) { return OctavesOf(value, 8); }
constexpr int FineOctavesOf(float value) { return OctavesOf(value, 64); }

struct LynxTable {
  std::array<std::uint16_t, kLynxSymbols + 1> cumulative;  // of 2^12; every symbol has at least one
  std::array<std::uint8_t, 1 << kLynxProbabilityBits> symbol;
  constexpr int Frequency(int each) const { return cumulative[std::size_t(each) + 1] - cumulative[std::size_t(each)]; }
};

// All that coding looks up; a copy of it works as well (on a GPU).
class LynxTables {
 public:
  static const LynxTables& Get();
  constexpr const LynxTable& operator[](int table) const { return tables_[std::size_t(table)]; }

  // The class of a channel with `tokens` values whose magnitudes, in 32nds of a step, sum up to `sum`.
  static constexpr int ClassOf(std::int64_t sum, int tokens) {
    const int eighths = EighthOctavesOf(float(sum) / (32.0f * float(tokens)));
    return std::clamp(kLynxUnitClass + (eighths + 1 + 1024) / 2 - 512, 0, kLynxClasses - 1);
  }
  // Bits per value in a channel whose mean magnitude is 2^(eighths / 8) steps.
  constexpr double Bits(int eighths) const {
    if (eighths < kLeastEighths) return bits_.front();
    if (eighths > kGreatestEighths) return bits_.back() + (eighths - kGreatestEighths) / 8.0;
    return bits_[std::size_t(eighths - kLeastEighths)];
  }

 private:
  static constexpr int kLeastEighths = -48, kGreatestEighths = 40;
  LynxTables();
  std::array<LynxTable, kLynxTables> tables_;
  std::array<double, kGreatestEighths - kLeastEighths + 1> bits_;
};

}  // namespace lynx
