// The quantizers of least squared error for a standard normal source (J. Max, "Quantizing for Minimum Distortion", IRE
// Transactions on Information Theory 6, 1960, table I; found independently by Lloyd).
#pragma once

#include <span>

namespace lynx {

// The positive half of the 2^bits levels, from the inside out; bits: 1…4.
std::span<const float> MaxLevels(int bits);

// 0…2^bits - 1, ascending.
int MaxLevelOf(float value, int bits);
float MaxValueOf(int level, int bits);

}  // namespace lynx
