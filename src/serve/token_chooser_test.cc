#include "serve/token_chooser.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "speculate/chi_square_test.h"

namespace lynx {
namespace {

constexpr int kVocab = 12;

std::vector<float> RandomLogits(std::uint64_t seed) {
  Random random(seed);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = float(random.Unit() * 4 - 2);
  return logits;
}

std::vector<float> Rows(std::initializer_list<std::vector<float>> rows) {
  std::vector<float> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

SamplingOptions Sampling(SamplingMethod method, std::uint64_t seed) {
  SamplingOptions options;
  options.temperature = 1.0f;
  options.seed = seed;
  options.method = method;
  return options;
}

std::vector<double> Distribution(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<float> p(kVocab);
  TokenProbabilities(logits, options, p);
  return {p.begin(), p.end()};
}

TEST(TokenChooser, CoupledDraftsEqualPlainTokens) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    TokenChooser chooser(Sampling(SamplingMethod::kCoupled, seed));
    const auto logits = RandomLogits(seed);
    EXPECT_EQ(chooser.Draft(logits, 3), chooser.Plain(logits, 3));
    EXPECT_EQ(chooser.Plain(logits, 3), SampleToken(logits, Sampling(SamplingMethod::kCoupled, seed), 3));
  }
}

TEST(TokenChooser, CoupledAcceptsWhatItWouldChoose) {
  TokenChooser chooser(Sampling(SamplingMethod::kCoupled, 7));
  const auto a = RandomLogits(1), b = RandomLogits(2), c = RandomLogits(3);
  const Token first = chooser.Plain(a, 4), second = chooser.Plain(b, 5), third = chooser.Plain(c, 6);
  // A row more than drafts: the token after them.
  EXPECT_EQ(chooser.Judge(Check{{0, first, second}, {first, second}, 4, true}, Rows({a, b, c}), 1),
            (Checked{2, true, third}));
  EXPECT_EQ(chooser.Judge(Check{{0, first}, {first, second}, 4, true}, Rows({a, b}), 1), (Checked{2, false, 0}));
  // The first difference ends it, whatever follows.
  const Token other = (second + 1) % kVocab;
  EXPECT_EQ(chooser.Judge(Check{{0, first, other}, {first, other, third}, 4, true}, Rows({a, b, c}), 1),
            (Checked{1, true, second}));
  EXPECT_EQ(chooser.Judge(Check{{0, 1}, {(first + 1) % kVocab, second}, 4, true}, Rows({a, b}), 1),
            (Checked{0, true, first}));
}

TEST(TokenChooser, NothingToJudge) {
  for (const auto method : {SamplingMethod::kCoupled, SamplingMethod::kRejection}) {
    TokenChooser chooser(Sampling(method, 7));
    EXPECT_EQ(chooser.Judge(Check{{1, 2}, {}, 4, false}, {}, 1), Checked{});
  }
}

TEST(TokenChooser, RejectionWithEqualRowsAcceptsAll) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    TokenChooser chooser(Sampling(SamplingMethod::kRejection, seed));
    const auto a = RandomLogits(1), b = RandomLogits(2), c = RandomLogits(3);
    const Token first = chooser.Draft(a, 1), second = chooser.Draft(b, 2);
    const Checked checked = chooser.Judge(Check{{0, first, second}, {first, second}, 1, true}, Rows({a, b, c}), 1);
    EXPECT_EQ(checked, (Checked{2, true, chooser.Plain(c, 3)})) << "seed " << seed;
  }
}

// Draft from q, judge by p once or by two streams: the token is distributed as the last p. The middle check replaces
// drafts and adds one behind the last, so it is wrong as soon as a replaced or added draft keeps another q.
TEST(TokenChooser, RejectionGivesTheLastDistribution) {
  constexpr int kRuns = 20'000;
  const auto q = RandomLogits(11), middle = RandomLogits(12), p = RandomLogits(13), bonus = RandomLogits(14),
             last_bonus = RandomLogits(15);
  std::vector<int> first(kVocab), second(kVocab);
  int runs_with_second = 0;
  for (int run = 0; run < kRuns; ++run) {
    TokenChooser chooser(Sampling(SamplingMethod::kRejection, std::uint64_t(run)));
    const Token draft = chooser.Draft(q, 1);
    const Checked checked = chooser.Judge(Check{{0, draft}, {draft}, 1, false}, Rows({middle, bonus}), 1);
    ASSERT_TRUE(checked.has_replacement);
    std::vector<Token> standing;
    if (checked.accepted == 1) standing.push_back(draft);
    standing.push_back(checked.replacement);
    std::vector<Token> feed{0};
    feed.insert(feed.end(), standing.begin(), standing.end() - 1);
    const auto rows = standing.size() == 2 ? Rows({p, last_bonus}) : Rows({p});
    const Checked final = chooser.Judge(Check{feed, standing, 1, true}, rows, 2);
    ++first[final.accepted >= 1 ? standing[0] : final.replacement];
    if (standing.size() == 2 && final.accepted >= 1) {
      ++runs_with_second;
      ++second[final.accepted == 2 ? standing[1] : final.replacement];
    }
  }
  const SamplingOptions options = Sampling(SamplingMethod::kRejection, 0);
  EXPECT_LT(ChiSquareDeviate(first, Distribution(p, options)), 4);
  EXPECT_GT(runs_with_second, kRuns / 20);
  EXPECT_LT(ChiSquareDeviate(second, Distribution(last_bonus, options)), 4);
  EXPECT_GT(ChiSquareDeviate(first, Distribution(middle, options)), 10) << "the control must fail";
}

}  // namespace
}  // namespace lynx
