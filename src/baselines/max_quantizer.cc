#include "baselines/max_quantizer.h"

#include <cmath>

#include "base/check.h"

namespace lynx {
namespace {

constexpr float kLevels[] = {0.7980f,                                                              // 2 levels
                             0.4528f, 1.510f,                                                      // 4
                             0.2451f, 0.7560f, 1.344f,  2.152f,                                    // 8
                             0.1284f, 0.3881f, 0.6568f, 0.9424f, 1.256f, 1.618f, 2.069f, 2.733f};  // 16

}  // namespace

std::span<const float> MaxLevels(int bits) {
  LYNX_CHECK(bits >= 1 && bits <= 4);
  const int half = 1 << (bits - 1);
  return std::span(kLevels).subspan(std::size_t(half - 1), std::size_t(half));
}

// Thresholds lie midway between levels.
int MaxLevelOf(float value, int bits) {
  const std::span<const float> levels = MaxLevels(bits);
  const float magnitude = std::fabs(value);
  int step = 0;
  for (std::size_t i = 1; i < levels.size(); ++i) step += magnitude > (levels[i - 1] + levels[i]) / 2.0f ? 1 : 0;
  const int half = int(levels.size());
  return value < 0.0f ? half - 1 - step : half + step;
}

float MaxValueOf(int level, int bits) {
  const std::span<const float> levels = MaxLevels(bits);
  const int half = int(levels.size());
  return level < half ? -levels[std::size_t(half - 1 - level)] : levels[std::size_t(level - half)];
}

}  // namespace lynx
