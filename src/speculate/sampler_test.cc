#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/portable_math.h"
#include "base/random.h"
#include "lynx/speculate.h"
#include "speculate/chi_square_test.h"

namespace lynx {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(int count, std::uint64_t seed, float spread = 4.0f) {
  Random random(seed);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = spread * float(random.Unit() + random.Unit() - 1.0);
  return logits;
}

// The chain as one reads it: sort everything, cut, renormalise.
std::vector<double> PlainProbabilities(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (options.top_k > 0 && std::size_t(options.top_k) < order.size()) order.resize(options.top_k);
  const double top = logits[order[0]];
  if (options.top_p < 1.0f) {
    double total = 0, sum = 0;
    for (int id : order) total += std::exp(logits[id] - top);
    for (std::size_t i = 0; i < order.size(); ++i) {
      sum += std::exp(logits[order[i]] - top) / total;
      if (sum >= options.top_p) {
        order.resize(i + 1);
        break;
      }
    }
  }
  if (options.min_p > 0) {
    std::erase_if(order, [&](int id) { return logits[id] < logits[order[0]] + std::log(options.min_p); });
  }
  std::vector<double> probabilities(logits.size());
  double total = 0;
  for (int id : order) total += probabilities[id] = std::exp((logits[id] - top) / options.temperature);
  for (double& probability : probabilities) probability /= total;
  return probabilities;
}

std::vector<float> Probabilities(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<float> probabilities(logits.size());
  TokenProbabilities(logits, options, probabilities);
  return probabilities;
}

TEST(PortableMath, AgreesWithLibm) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const double x = (random.Unit() - 0.5) * 200;
    EXPECT_NEAR(PortableExp(x) / std::exp(x), 1.0, 1e-15) << x;
    const double y = std::exp(x);
    EXPECT_NEAR(PortableLog(y), std::log(y), 1e-15 * std::max(1e-3, std::abs(x))) << y;
  }
  for (double u : {0x1p-53, 1 - 0x1p-53, 0.5, 1.0, 0.999999}) EXPECT_DOUBLE_EQ(PortableLog(u), std::log(u));
  EXPECT_EQ(PortableExp(-1000), 0);
  EXPECT_EQ(PortableExp(0), 1);
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargest) {
  const SamplingOptions greedy;
  for (int size : {1, 15, 16, 17, 100}) {
    auto logits = RandomLogits(size, size);
    EXPECT_EQ(SampleCoupled(logits, greedy, 0), std::max_element(logits.begin(), logits.end()) - logits.begin());
    std::fill(logits.begin(), logits.end(), -3.0f);
    EXPECT_EQ(SampleCoupled(logits, greedy, 0), 0);
    logits.back() = -2.0f;
    EXPECT_EQ(SampleCoupled(logits, greedy, 0), size - 1);
  }
  EXPECT_EQ(SampleCoupled(std::vector<float>{kNan, -1, kNan, 2, 2}, greedy, 0), 3);
  EXPECT_EQ(SampleCoupled(std::vector<float>{-kInf, kNan, -kInf}, greedy, 0), 0);
  EXPECT_EQ(SampleCoupled(std::vector<float>{-0.0f, 0.0f}, greedy, 0), 0);
  EXPECT_EQ(SampleCoupled(std::vector<float>{1, kInf, kInf}, greedy, 0), 1);
}

TEST(Sampler, OddLogits) {
  for (const SamplingOptions& options : {SamplingOptions{.temperature = 1},
                                         SamplingOptions{.temperature = 1, .top_k = 2, .top_p = 0.9f, .min_p = 0.1f}}) {
    for (int index = 0; index < 200; ++index) {
      EXPECT_EQ(SampleCoupled(std::vector<float>{-kInf, kNan, -kInf}, options, index), 0);
      EXPECT_EQ(SampleCoupled(std::vector<float>{kNan, -kInf, 3, kNan}, options, index), 2);
      EXPECT_EQ(SampleCoupled(std::vector<float>{1, kInf, 2}, options, index), 1);
      EXPECT_EQ(SampleCoupled(std::vector<float>{-1e38f}, options, index), 0);
    }
    EXPECT_EQ(Probabilities({-kInf, kNan}, options), (std::vector<float>{1, 0}));
    EXPECT_EQ(Probabilities({kInf, 0, kNan, kInf}, options), (std::vector<float>{0.5, 0, 0, 0.5}));
  }
  // A temperature near 0 is greedy.
  EXPECT_EQ(SampleCoupled(std::vector<float>{1, 2, 1.5f}, {.temperature = 1e-40f}, 0), 1);
}

TEST(Sampler, FiltersEqualThePlainChain) {
  Random random(5);
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE(round);
    const int vocabulary = 1 + int(random.Below(round % 10 == 0 ? 3000 : 60));
    auto logits = RandomLogits(vocabulary, round, round % 3 == 0 ? 20.0f : 3.0f);
    if (round % 4 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // many ties
    }
    SamplingOptions options{.temperature = 0.3f + float(random.Unit())};
    if (random.Below(2)) options.top_k = 1 + int(random.Below(vocabulary + 3));
    if (random.Below(2)) options.top_p = float(random.Unit());
    if (random.Below(2)) options.min_p = float(random.Unit() * 0.3);
    ASSERT_TRUE(CheckSampling(options).ok());
    const auto plain = PlainProbabilities(logits, options);
    const auto ours = Probabilities(logits, options);
    for (int id = 0; id < vocabulary; ++id) ASSERT_NEAR(plain[id], ours[id], 1e-6) << id;
    for (int index = 0; index < 20; ++index) ASSERT_GT(ours[SampleCoupled(logits, options, index)], 0) << index;
  }
}

TEST(Sampler, CutsAreInclusive) {
  // 1/2, 1/4, 1/8, 1/8 in any order.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.125f), std::log(0.25f)};
  const auto kept = [&](SamplingOptions options) {
    options.temperature = 1;
    const auto probabilities = Probabilities(logits, options);
    return std::count_if(probabilities.begin(), probabilities.end(), [](float p) { return p > 0; });
  };
  EXPECT_EQ(kept({.top_p = 0.49f}), 1);
  EXPECT_EQ(kept({.top_p = 0.51f}), 2);
  EXPECT_EQ(kept({.top_p = 0.8f}), 3);
  EXPECT_EQ(kept({.top_p = 0.99f}), 4);
  EXPECT_EQ(kept({.top_p = 1e-6f}), 1);
  EXPECT_EQ(kept({.min_p = 1.0f}), 1);
  EXPECT_EQ(kept({.min_p = 0.4f}), 2);
  EXPECT_EQ(kept({.min_p = 0.2f}), 4);
  EXPECT_EQ(kept({.top_k = 3}), 3);
  EXPECT_GT(Probabilities(logits, {.temperature = 1, .top_k = 3})[0], 0);  // of the tie the lower id stays
}

TEST(Sampler, CoupledFollowsTheSoftmax) {
  const auto logits = RandomLogits(30, 3);
  for (const SamplingOptions& base : {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 0.5f},
                                      SamplingOptions{.temperature = 2, .top_k = 12, .top_p = 0.9f, .min_p = 0.05f}}) {
    const auto probabilities = PlainProbabilities(logits, base);
    std::vector<int> by_seed(30), by_index(30);
    for (int i = 0; i < 60000; ++i) {
      SamplingOptions options = base;
      ++by_index[SampleCoupled(logits, options, i)];
      options.seed = i;
      ++by_seed[SampleCoupled(logits, options, 4)];
    }
    EXPECT_LT(ChiSquareDeviate(by_seed, probabilities), 4);
    EXPECT_LT(ChiSquareDeviate(by_index, probabilities), 4);
  }
}

TEST(Sampler, ConsecutiveTokensAreIndependent) {
  const std::vector<float> logits(4, 0.0f);
  std::vector<int> pairs(16);
  for (int seed = 0; seed < 40000; ++seed) {
    const SamplingOptions options{.temperature = 1, .seed = std::uint64_t(seed)};
    ++pairs[SampleCoupled(logits, options, 0) * 4 + SampleCoupled(logits, options, 1)];
  }
  EXPECT_LT(ChiSquareDeviate(pairs, std::vector<double>(16, 1.0 / 16)), 4);
}

TEST(Sampler, TheRaceEqualsItsDefinition) {
  // Without the shortcut: every token's value, the noise from the hash that the code uses.
  for (int round = 0; round < 300; ++round) {
    const auto logits = RandomLogits(500, round);
    const SamplingOptions options{.temperature = 0.8f, .seed = std::uint64_t(round)};
    const std::uint64_t key = Mix64(Mix64(options.seed) + 9);
    int best = 0;
    double most = -INFINITY;
    for (int id = 0; id < 500; ++id) {
      const double unit = (double(Mix64(key ^ std::uint64_t(id)) >> 12) + 0.5) * 0x1p-52;
      const double value = double(logits[id]) / 0.8f - PortableLog(-PortableLog(unit));
      if (value > most) most = value, best = id;
    }
    ASSERT_EQ(SampleCoupled(logits, options, 9), best) << round;
  }
}

// Pins the hash and the arithmetic: another machine must give these too.
TEST(Sampler, SameTokensEverywhere) {
  const auto logits = RandomLogits(49152, 77);  // spread over many tokens
  std::vector<Token> tokens;
  for (int index = 0; index < 6; ++index) {
    tokens.push_back(SampleCoupled(logits, {.temperature = 0.7f, .top_p = 0.5f, .seed = 42}, index));
    tokens.push_back(SampleCoupled(logits, {.temperature = 0.7f, .seed = 42}, index));
  }
  EXPECT_EQ(tokens,
            std::vector<Token>({40642, 40642, 28771, 28771, 13200, 13200, 22415, 22415, 33232, 33232, 43525, 19083}));
}

TEST(Sampler, ChecksOptions) {
  EXPECT_TRUE(CheckSampling({}).ok());
  for (const SamplingOptions& bad :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = kNan}, SamplingOptions{.temperature = kInf},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.01f},
        SamplingOptions{.top_p = kNan}, SamplingOptions{.min_p = -0.1f}, SamplingOptions{.min_p = 1.1f},
        SamplingOptions{.min_p = kNan}, SamplingOptions{.method = SamplingMethod(9)}}) {
    EXPECT_EQ(CheckSampling(bad).code(), ErrorCode::kInvalid);
  }
}

// Microseconds per token for a vocabulary of 49152. Printed; the limits are ten times the targets, for busy machines.
TEST(Sampler, Speed) {
  const auto logits = RandomLogits(49152, 1, 12.0f);
  const auto microseconds = [&](const SamplingOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    Token sum = 0;
    for (int index = 0; index < 50; ++index) sum += SampleCoupled(logits, options, index);
    EXPECT_GE(sum, 0);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / 50;
  };
  const double greedy = microseconds({}), all = microseconds({.temperature = 0.8f}),
               top_p = microseconds({.temperature = 0.8f, .top_p = 0.95f}),
               chain = microseconds({.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f});
  std::printf("greedy %.1f us, all %.0f us, top-p %.0f us, top-k+top-p+min-p %.0f us\n", greedy, all, top_p, chain);
#ifdef NDEBUG
  EXPECT_LT(greedy, 500);
  EXPECT_LT(std::max({all, top_p, chain}), 10000);
#endif
}

}  // namespace
}  // namespace lynx
