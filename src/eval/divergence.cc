#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/random.h"

namespace lynx {
namespace {

constexpr int kBootstrapDraws = 2000;

double LogSumExp(std::span<const float> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float logit : row) sum += std::exp(double(logit) - largest);
  return largest + std::log(sum);
}

double RowDivergence(std::span<const float> reference, std::span<const float> test) {
  const double reference_norm = LogSumExp(reference);
  const double test_norm = LogSumExp(test);
  double sum = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double log_p = double(reference[i]) - reference_norm;
    sum += std::exp(log_p) * (log_p - (double(test[i]) - test_norm));
  }
  return std::max(sum, 0.0);
}

}  // namespace

double MeanDivergence(std::span<const float> reference, std::span<const float> test, std::size_t vocab) {
  LYNX_CHECK(reference.size() == test.size() && !reference.empty() && reference.size() % vocab == 0);
  double sum = 0;
  for (std::size_t at = 0; at < reference.size(); at += vocab) {
    sum += RowDivergence(reference.subspan(at, vocab), test.subspan(at, vocab));
  }
  return sum / double(reference.size() / vocab);
}

double TopAgreement(std::span<const float> reference, std::span<const float> test, std::size_t vocab) {
  LYNX_CHECK(reference.size() == test.size() && !reference.empty() && reference.size() % vocab == 0);
  std::size_t same = 0;
  for (std::size_t at = 0; at < reference.size(); at += vocab) {
    const auto a = reference.subspan(at, vocab);
    const auto b = test.subspan(at, vocab);
    same += std::size_t(std::max_element(a.begin(), a.end()) - a.begin() ==
                        std::max_element(b.begin(), b.end()) - b.begin());
  }
  return double(same) / double(reference.size() / vocab);
}

double GeometricMean(std::span<const double> values, double floor) {
  LYNX_CHECK(!values.empty() && floor > 0);
  double sum = 0;
  for (const double value : values) sum += std::log(std::max(value, floor));
  return std::exp(sum / double(values.size()));
}

Interval BootstrapInterval(std::span<const double> values, double floor, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> means;
  std::vector<double> sample(values.size());
  for (int draw = 0; draw < kBootstrapDraws; ++draw) {
    for (double& value : sample) value = values[random.Below(values.size())];
    means.push_back(GeometricMean(sample, floor));
  }
  std::sort(means.begin(), means.end());
  return {means[std::size_t(kBootstrapDraws * 0.025)], means[std::size_t(kBootstrapDraws * 0.975)]};
}

}  // namespace lynx
