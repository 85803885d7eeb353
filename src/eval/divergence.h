// How far two rows of logits, and many of them, are apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lynx {

// KL(reference || test) = sum p_ref ln(p_ref / p_test) in nats, softmax at temperature 1, averaged over the rows.
double MeanDivergence(std::span<const float> reference, std::span<const float> test, std::size_t vocab);
// Share of the rows whose largest logit is the same token (ties by lowest id).
double TopAgreement(std::span<const float> reference, std::span<const float> test, std::size_t vocab);

struct Interval {
  double low = 0;
  double high = 0;
};
// exp(mean(ln x)) of positive values; zeros count as `floor`.
double GeometricMean(std::span<const double> values, double floor);
// 95 % percentile bootstrap of the geometric mean, seeded.
Interval BootstrapInterval(std::span<const double> values, double floor, std::uint64_t seed);

}  // namespace lynx
