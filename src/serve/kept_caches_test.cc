#include "serve/kept_caches.h"

#include <gtest/gtest.h>

#include <string>

#include "serve/toy_cache_test.h"

namespace lynx {
namespace {

ToyOptions WithSequences(int sequences) {
  ToyOptions options;
  options.max_sequences = sequences;
  return options;
}

class KeptCachesTest : public ::testing::Test {
 protected:
  void Use(int sequences, int max_kept) {
    kept_.reset();  // before its engine
    engine_ = MakeToy(WithSequences(sequences));
    kept_.emplace(engine_.get(), max_kept);
  }

  // Reads a prompt as the prefill node does; checks that cache and logits equal a fresh prefill. Returns what was
  // reused.
  int Read(const std::vector<Token>& prompt, bool reuse = true) {
    auto lease = kept_->Take(prompt, reuse);
    EXPECT_TRUE(lease.ok()) << lease.status().ToString();
    if (!lease.ok()) return -1;
    EXPECT_EQ(engine_->Length(lease->sequence), lease->reused);
    EXPECT_EQ(lease->logits.empty(), lease->reused < int(prompt.size()));
    const auto rest = std::span(prompt).subspan(lease->reused);
    std::vector<float> logits = rest.empty() ? lease->logits : RunTokens(engine_.get(), lease->sequence, rest);
    const auto fresh_engine = MakeToy();
    const Prefilled fresh = Prefill(fresh_engine.get(), prompt);
    EXPECT_TRUE(SameBytes(ReadCache(engine_.get(), lease->sequence, int(prompt.size())), fresh.cache));
    EXPECT_EQ(logits, fresh.logits);
    kept_->Keep(lease->sequence, prompt, std::move(logits));
    return lease->reused;
  }

  std::unique_ptr<Engine> engine_;
  std::optional<KeptCaches> kept_;
};

std::vector<Token> Head(const std::vector<Token>& tokens, int count) {
  return {tokens.begin(), tokens.begin() + count};
}

TEST_F(KeptCachesTest, SamePromptIsNotReadAgain) {
  Use(3, 2);
  const auto prompt = RandomPrompt(50, 1);
  EXPECT_EQ(Read(prompt), 0);
  EXPECT_EQ(Read(prompt), 50);
  EXPECT_EQ(Read(prompt), 50);
  EXPECT_EQ(kept_->count(), 1);
}

TEST_F(KeptCachesTest, LongerPromptGoesOnInPlace) {
  Use(3, 2);
  const auto prompt = RandomPrompt(80, 2);
  EXPECT_EQ(Read(Head(prompt, 30)), 0);
  EXPECT_EQ(Read(prompt), 30);
  EXPECT_EQ(kept_->count(), 1);
  EXPECT_EQ(Read(prompt), 80);
}

TEST_F(KeptCachesTest, SharedBeginningIsCopied) {
  Use(4, 3);
  auto one = RandomPrompt(60, 3), two = one;
  two[40] = (two[40] + 1) % 63;
  EXPECT_EQ(Read(one), 0);
  EXPECT_EQ(Read(two), 40);
  EXPECT_EQ(kept_->count(), 2);
  EXPECT_EQ(Read(one), 60) << "the source of the copy is still there";
  EXPECT_EQ(Read(two), 60);
  EXPECT_EQ(Read(Head(one, 41)), 40) << "the longest common beginning counts";
}

TEST_F(KeptCachesTest, ShorterPromptRunsItsLastToken) {
  Use(3, 2);
  const auto prompt = RandomPrompt(60, 4);
  EXPECT_EQ(Read(prompt), 0);
  EXPECT_EQ(Read(Head(prompt, 20)), 19);
  EXPECT_EQ(Read(Head(prompt, 1)), 0);
}

TEST_F(KeptCachesTest, NoReuseReadsEverything) {
  Use(3, 2);
  const auto prompt = RandomPrompt(20, 5);
  EXPECT_EQ(Read(prompt), 0);
  EXPECT_EQ(Read(prompt, false), 0);
  EXPECT_EQ(Read(prompt), 20);
}

TEST_F(KeptCachesTest, LeastRecentlyUsedGoesFirst) {
  Use(4, 3);
  const auto a = RandomPrompt(20, 6), b = RandomPrompt(20, 7), c = RandomPrompt(20, 8), d = RandomPrompt(20, 9);
  Read(a), Read(b), Read(c);
  EXPECT_EQ(Read(a), 20);  // now b is the oldest
  EXPECT_EQ(Read(d), 0);
  EXPECT_EQ(kept_->count(), 3);
  EXPECT_EQ(Read(c), 20);
  EXPECT_EQ(Read(a), 20);
  EXPECT_EQ(Read(d), 20);
  EXPECT_EQ(Read(b), 0);
}

TEST_F(KeptCachesTest, ACopyCountsAsUse) {
  Use(3, 2);
  const auto a = RandomPrompt(40, 10), b = RandomPrompt(40, 11);
  Read(a), Read(b);
  auto like_a = Head(a, 30);
  like_a.push_back((a[30] + 1) % 63);
  EXPECT_EQ(Read(like_a), 30);  // b goes, a stays
  EXPECT_EQ(Read(a), 40);
}

TEST_F(KeptCachesTest, EngineWithoutRoomForgets) {
  Use(2, 4);  // fewer sequences than caches may stay
  const auto a = RandomPrompt(30, 12), b = RandomPrompt(30, 13), c = RandomPrompt(30, 14);
  Read(a), Read(b);
  EXPECT_EQ(Read(c), 0);
  EXPECT_EQ(Read(b), 30);
  // The only source has to go: what it could have given is read anew.
  Use(1, 1);
  Read(a);
  auto like_a = a;
  like_a[20] = (a[20] + 1) % 63;
  EXPECT_EQ(Read(like_a), 0);
}

TEST_F(KeptCachesTest, FullEngineOfOthersIsAnError) {
  Use(1, 1);
  ASSERT_TRUE(engine_->Open().ok());
  EXPECT_EQ(kept_->Take(RandomPrompt(5, 15), true).status().code(), ErrorCode::kLimit);
  EXPECT_FALSE(kept_->ForgetOne());
}

TEST_F(KeptCachesTest, DropFreesTheSequence) {
  Use(1, 1);
  for (int i = 0; i < 3; ++i) {
    auto lease = kept_->Take(RandomPrompt(5, 16), true);
    ASSERT_TRUE(lease.ok()) << lease.status().ToString();
    kept_->Drop(lease->sequence);
  }
}

TEST_F(KeptCachesTest, EndFreesEverySequence) {
  Use(2, 2);
  Read(RandomPrompt(5, 17)), Read(RandomPrompt(5, 18));
  kept_.reset();
  EXPECT_TRUE(engine_->Open().ok());
  EXPECT_TRUE(engine_->Open().ok());
}

TEST_F(KeptCachesTest, RandomPromptsAlwaysEqualAFreshPrefill) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int sequences = 1 + int(random.Below(4));
    Use(sequences, int(random.Below(std::uint64_t(sequences) + 1)));
    const auto base = RandomPrompt(40, seed);
    for (int i = 0; i < 15; ++i) {
      auto prompt = Head(base, 1 + int(random.Below(40)));
      const auto more = RandomPrompt(int(random.Below(10)), random.Next());
      prompt.insert(prompt.end(), more.begin(), more.end());
      Read(prompt, random.Below(5) != 0);
    }
  }
}

}  // namespace
}  // namespace lynx
