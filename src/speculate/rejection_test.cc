#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "lynx/speculate.h"
#include "speculate/chi_square_test.h"

namespace lynx {
namespace {

using Row = std::vector<float>;

Row RandomRow(int count, std::uint64_t seed) {
  Random random(seed);
  Row row(count);
  float total = 0;
  for (float& p : row) total += p = float(random.Unit() * random.Unit());
  for (float& p : row) p /= total;
  return row;
}

double Deviate(const std::vector<int>& counts, const Row& row) {
  return ChiSquareDeviate(counts, std::vector<double>(row.begin(), row.end()));
}

constexpr int kRounds = 60000;

TEST(Rejection, DraftThenCheckGivesP) {
  const Row left = {0.5f, 0.5f, 0, 0}, right = {0, 0, 0.25f, 0.75f}, mixed = {0.1f, 0.2f, 0.3f, 0.4f};
  const Row wide = RandomRow(20, 1), other = RandomRow(20, 2);
  for (const auto& [p, q] : {std::pair{wide, other},
                             {other, wide},
                             {wide, wide},
                             {left, right},
                             {right, left},
                             {mixed, left},
                             {left, mixed}}) {
    std::vector<int> drafts(p.size()), results(p.size());
    int accepted = 0;
    for (int seed = 0; seed < kRounds; ++seed) {
      const Token draft = SampleFrom(q, seed, 3);
      const auto outcome = VerifyByRejection(p, q, draft, seed, 3, 1);
      ++drafts[draft];
      ++results[outcome.token];
      accepted += outcome.accepted;
      EXPECT_EQ(outcome.accepted, outcome.token == draft);
    }
    EXPECT_LT(Deviate(drafts, q), 4);
    EXPECT_LT(Deviate(results, p), 4);
    double overlap = 0;
    for (std::size_t i = 0; i < p.size(); ++i) overlap += std::min(p[i], q[i]);
    EXPECT_NEAR(double(accepted) / kRounds, overlap, 0.01);
  }
}

TEST(Rejection, EqualRowsAlwaysAccept) {
  for (int seed = 0; seed < 20000; ++seed) {
    const Row row = RandomRow(8, seed);
    const Token draft = SampleFrom(row, seed, 0);
    ASSERT_TRUE(VerifyByRejection(row, row, draft, seed, 0, 1).accepted) << seed;
  }
}

// A re-check at a middle stream, then verification: what was kept or replaced has the middle row as its q.
TEST(Rejection, TwoStagesGiveTheLastRow) {
  const Row first = RandomRow(12, 5), middle = RandomRow(12, 6), last = RandomRow(12, 7);
  std::vector<int> after_middle(12), after_last(12), kept(12);
  std::vector<int> stale(12);
  for (int seed = 0; seed < kRounds; ++seed) {
    const Token draft = SampleFrom(first, seed, 8);
    const Token second = VerifyByRejection(middle, first, draft, seed, 8, 1).token;
    ++after_middle[second];
    ++after_last[VerifyByRejection(last, middle, second, seed, 8, 2).token];
    ++stale[VerifyByRejection(last, first, second, seed, 8, 2).token];
  }
  EXPECT_LT(Deviate(after_middle, middle), 4);
  EXPECT_LT(Deviate(after_last, last), 4);
  EXPECT_GT(Deviate(stale, last), 10) << "the test would not see a q that was not replaced";
}

TEST(Rejection, StagesAreIndependent) {
  const Row first = RandomRow(12, 5), middle = RandomRow(12, 6), last = RandomRow(12, 7);
  std::vector<int> same(12);
  for (int seed = 0; seed < kRounds; ++seed) {
    const Token second = VerifyByRejection(middle, first, SampleFrom(first, seed, 8), seed, 8, 1).token;
    ++same[VerifyByRejection(last, middle, second, seed, 8, 1).token];
  }
  EXPECT_GT(Deviate(same, last), 10) << "the test would not see one stream's randomness used twice";
}

TEST(Rejection, PureAndCoversTheEnds) {
  const Row one = {0, 1, 0};
  for (int seed = 0; seed < 1000; ++seed) {
    EXPECT_EQ(SampleFrom(one, seed, seed), 1);
    EXPECT_EQ(VerifyByRejection(one, Row{1, 0, 0}, 0, seed, 0, 1).token, 1);
    const Row row = RandomRow(9, seed);
    EXPECT_EQ(SampleFrom(row, seed, 2), SampleFrom(row, seed, 2));
  }
  EXPECT_EQ(SampleFrom(Row{0, 0}, 1, 1), 0);
  // p <= q everywhere (rows that do not add up): still a token of p.
  EXPECT_EQ(VerifyByRejection(Row{0, 0, 0.5f}, Row{0.5f, 0, 0.5f}, 0, 1, 1, 1).token, 2);
}

}  // namespace
}  // namespace lynx
