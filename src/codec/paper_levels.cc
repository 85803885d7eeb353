#include "codec/paper_levels.h"

#include <limits>

#include "base/check.h"

namespace lynx {
namespace {

// base^(1/n) for base > 1 by Newton's method from above, plain double arithmetic in a fixed order: the same on every
// target, unlike pow. The start 1 + (base - 1) / n is never below the root (Bernoulli), so the sequence falls until
// rounding stops it.
double Root(double base, int n) {
  double root = 1.0 + (base - 1.0) / n;
  for (;;) {
    double power = 1.0;  // root^(n - 1)
    for (int i = 1; i < n; ++i) power *= root;
    const double next = root - (root - base / power) / n;
    if (!(next < root)) return root;
    root = next;
  }
}

}  // namespace

PaperLevels::PaperLevels(double alpha, int full_scale) : full_scale_(full_scale) {
  LYNX_CHECK(full_scale >= 1 && full_scale <= int(thresholds_.size()) && alpha >= 0);
  thresholds_.fill(std::numeric_limits<float>::infinity());
  // power = (1 + alpha)^(half_steps / (2 full_scale)): levels lie at even, thresholds at odd half steps.
  const double root = alpha > 0 ? Root(1.0 + alpha, 2 * full_scale) : 1.0;
  double power = 1.0;
  for (int half_steps = 0; half_steps < 2 * int(values_.size()); ++half_steps) {
    const auto magnitude = float(alpha > 0 ? (power - 1.0) / alpha : double(half_steps) / (2 * full_scale));
    if (half_steps % 2 == 0) {
      values_[half_steps / 2] = magnitude;
    } else if (half_steps / 2 < full_scale) {
      thresholds_[half_steps / 2] = magnitude;
    }
    power *= root;
  }
  FillBuckets();
}

// Buckets are so narrow that each holds at most one threshold: the level of its lower edge and one comparison decide.
void PaperLevels::FillBuckets() {
  first_bucket_ = BucketOf(thresholds_[0]);
  last_bucket_ = BucketOf(1.0f);
  LYNX_CHECK(last_bucket_ - first_bucket_ < int(bucket_levels_.size()));
  int level = 0;
  for (int bucket = first_bucket_; bucket <= last_bucket_; ++bucket) {
    bucket_levels_[bucket - first_bucket_] = std::uint8_t(level);
    const int begin = level;
    while (level < full_scale_ && BucketOf(thresholds_[level]) == bucket) ++level;
    LYNX_CHECK(level - begin <= 1);
  }
}

}  // namespace lynx
