// Goodness of fit, for tests of distributions.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

namespace lynx {

// Pearson's statistic of `counts` against `probabilities` as a standard normal deviate (Wilson-Hilferty), bins of less
// than 5 expected pooled. A count where the probability is 0 gives infinity. With fixed seeds 4 is a generous limit.
inline double ChiSquareDeviate(std::span<const int> counts, std::span<const double> probabilities) {
  double total = 0;
  for (int count : counts) total += count;
  double statistic = 0, pooled_count = 0, pooled_expected = 0;
  int bins = 0;
  const auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++bins;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * total;
    if (expected == 0 && counts[i] > 0) return INFINITY;
    if (expected >= 5) {
      add(counts[i], expected);
    } else {
      pooled_count += counts[i];
      pooled_expected += expected;
    }
  }
  if (pooled_expected >= 1) add(pooled_count, pooled_expected);
  const double freedom = bins - 1;
  if (freedom < 1) return 0;
  const double spread = 2.0 / (9.0 * freedom);
  return (std::cbrt(statistic / freedom) - (1 - spread)) / std::sqrt(spread);
}

}  // namespace lynx
