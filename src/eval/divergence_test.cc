#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lynx {
namespace {

TEST(MeanDivergence, KnownValues) {
  const std::vector<float> half = {0.0f, 0.0f};
  const std::vector<float> skewed = {std::log(3.0f), 0.0f};  // 3/4, 1/4
  EXPECT_NEAR(MeanDivergence(half, half, 2), 0.0, 1e-12);
  // 1/2 ln(2/3) + 1/2 ln 2 and 3/4 ln(3/2) + 1/4 ln(1/2): not symmetric.
  EXPECT_NEAR(MeanDivergence(half, skewed, 2), 0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0), 1e-7);
  EXPECT_NEAR(MeanDivergence(skewed, half, 2), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
}

TEST(MeanDivergence, IgnoresAConstantAndAveragesRows) {
  const std::vector<float> a = {1.0f, 2.0f, 0.0f, 0.0f};
  const std::vector<float> b = {101.0f, 102.0f, std::log(3.0f), 0.0f};
  EXPECT_NEAR(MeanDivergence(a, b, 2), (0.5 * std::log(2.0 / 3) + 0.5 * std::log(2.0)) / 2, 1e-6);
}

TEST(TopAgreement, CountsRowsAndBreaksTiesByLowestId) {
  const std::vector<float> a = {1.0f, 1.0f, 0.0f, 2.0f};
  const std::vector<float> b = {5.0f, 5.0f, 3.0f, 2.0f};
  EXPECT_DOUBLE_EQ(TopAgreement(a, b, 2), 0.5);
}

TEST(GeometricMean, OfPowers) {
  const std::vector<double> values = {1e-2, 1e-4, 0.0};
  EXPECT_NEAR(GeometricMean(values, 1e-6), 1e-4, 1e-12);
}

TEST(BootstrapInterval, CoversTheMeanAndShrinks) {
  std::vector<double> values;
  for (int i = 0; i < 40; ++i) values.push_back(std::exp(0.1 * (i % 7)));
  const double mean = GeometricMean(values, 1e-9);
  const Interval many = BootstrapInterval(values, 1e-9, 1);
  const Interval few = BootstrapInterval(std::span(values).first(7), 1e-9, 1);
  EXPECT_LT(many.low, mean);
  EXPECT_GT(many.high, mean);
  EXPECT_LT(many.high - many.low, few.high - few.low);
  EXPECT_EQ(BootstrapInterval(values, 1e-9, 1).low, many.low);
}

}  // namespace
}  // namespace lynx
