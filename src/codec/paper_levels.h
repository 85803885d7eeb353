// The logarithmic levels of Algorithm 1 as tables: a level is found by comparing with thresholds, never by a logarithm.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace lynx {

class PaperLevels {
 public:
  // full_scale: at most 127, the level of |x| = 1. alpha in [0.01, 1e6], or 0: levels at equal distances, the limit of
  // small alphas.
  PaperLevels(double alpha, int full_scale);

  // The level of magnitude >= 0: how many thresholds are <= magnitude; 0…full_scale.
  constexpr int LevelOf(float magnitude) const {
    const int bucket = std::clamp(BucketOf(magnitude), first_bucket_, last_bucket_) - first_bucket_;
    const int level = bucket_levels_[bucket];
    return level + (thresholds_[level] <= magnitude ? 1 : 0);
  }
  // The magnitude that a level stands for; level 0…255 (streams can say more than full_scale).
  constexpr float ValueOf(int level) const { return values_[level]; }
  // The least magnitude of level + 1.
  constexpr float ThresholdOf(int level) const { return thresholds_[level]; }

 private:
  // 64 buckets per octave: the leading bits of the float.
  static constexpr int BucketOf(float magnitude) { return int(std::bit_cast<std::uint32_t>(magnitude) >> 17); }
  void FillBuckets();

  int full_scale_;
  int first_bucket_;
  int last_bucket_;
  std::array<float, 128> thresholds_;  // [0, full_scale); infinite behind that
  std::array<float, 256> values_;
  std::array<std::uint8_t, 1664> bucket_levels_{};  // 26 octaves; alpha = 1e6 needs 25
};

// --- splitting a level into anchor and residual; all functions are total ---

// V = (level + 7) >> 4, 0…8: the nearest multiple of 16, ties go down.
constexpr int PaperCoarse(int level) { return (level + 7) >> 4; }
// A: V for sign +1, -V - 1 for sign -1.
constexpr int PaperAnchor(int coarse, bool negative) { return negative ? -coarse - 1 : coarse; }
constexpr bool PaperIsNegative(int anchor) { return anchor < 0; }
constexpr int PaperCoarseOf(int anchor) { return anchor < 0 ? -anchor - 1 : anchor; }
// R = 16 V - level, -8…7.
constexpr int PaperResidual(int coarse, int level) { return 16 * coarse - level; }
// The level again; below 0 (no encoder writes that) counts as 0.
constexpr int PaperJoin(int coarse, int residual) {
  const int level = 16 * coarse - residual;
  return level > 0 ? level : 0;
}

}  // namespace lynx
