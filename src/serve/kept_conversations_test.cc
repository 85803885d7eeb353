// Which conversations are kept, what of them a prompt gets, and that memory stays bounded.
#include "serve/kept_conversations.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/toy_cache_test.h"

namespace lynx {
namespace {

constexpr int kLeast = KeptConversations::kLeastTokens;

class KeptConversationsTest : public testing::Test {
 protected:
  KeptConversationsTest() : engine_(MakeToy({.max_tokens = 1024})) {}

  std::uint64_t BytesOf(int tokens) const {
    return std::uint64_t(tokens) * (std::uint64_t(engine_->info().shape.BytesPerToken()) + sizeof(Token));
  }
  // Runs the tokens and keeps their cache.
  void Keep(KeptConversations* kept, const std::vector<Token>& tokens, const std::string& codec = "raw") {
    const SequenceId sequence = engine_->Open().value();
    RunTokens(engine_.get(), sequence, tokens);
    EXPECT_TRUE(kept->Keep(engine_.get(), sequence, codec, tokens).ok());
    engine_->Close(sequence);
  }
  // How long a prefix the prompt gets, which is what the engine itself would compute.
  int Found(KeptConversations* kept, const std::vector<Token>& prompt, const std::string& codec = "raw") {
    const KeptPrefix found = kept->Find(codec, prompt);
    if (found.tokens == 0) {
      EXPECT_EQ(found.cache, nullptr);
      return 0;
    }
    const SequenceId sequence = engine_->Open().value();
    EXPECT_TRUE(WritePrefix(engine_.get(), sequence, found).ok());
    EXPECT_EQ(engine_->Length(sequence), found.tokens);
    const CacheBlock expected = Prefill(engine_.get(), std::span(prompt).first(found.tokens)).cache;
    EXPECT_TRUE(SameBytes(ReadCache(engine_.get(), sequence, found.tokens), expected));
    engine_->Close(sequence);
    return found.tokens;
  }

  std::unique_ptr<Engine> engine_;
};

std::vector<Token> First(const std::vector<Token>& tokens, int count) {
  return {tokens.begin(), tokens.begin() + count};
}

TEST_F(KeptConversationsTest, TheLongestPrefixOfTheSameCodec) {
  KeptConversations kept(1 << 20);
  const auto whole = RandomPrompt(700, 1);
  std::vector<Token> branch = First(whole, 400);
  branch.resize(600, 1);
  EXPECT_EQ(Found(&kept, whole), 0);
  Keep(&kept, First(whole, 300));
  EXPECT_EQ(Found(&kept, whole), 300);
  Keep(&kept, branch);  // in place of the first
  EXPECT_EQ(kept.bytes(), BytesOf(600));
  EXPECT_EQ(Found(&kept, whole), whole[400] == 1 ? 401 : 400);
  Keep(&kept, whole);
  EXPECT_EQ(kept.bytes(), BytesOf(600) + BytesOf(700));
  EXPECT_EQ(Found(&kept, branch), 599);
  EXPECT_EQ(Found(&kept, whole, "nested"), 0);
  Keep(&kept, First(whole, 500), "nested");
  EXPECT_EQ(Found(&kept, whole, "nested"), 500);
  EXPECT_EQ(Found(&kept, whole), 699) << "the last token always travels";
  EXPECT_EQ(Found(&kept, First(whole, 350)), 349);
  EXPECT_EQ(Found(&kept, RandomPrompt(700, 2)), 0);
  EXPECT_EQ(Found(&kept, {}), 0);
}

TEST_F(KeptConversationsTest, ShortOnesAreNotWorthIt) {
  KeptConversations kept(1 << 20);
  const auto whole = RandomPrompt(400, 1);
  Keep(&kept, First(whole, kLeast - 1));
  EXPECT_EQ(kept.bytes(), 0u);
  Keep(&kept, whole);
  EXPECT_EQ(Found(&kept, First(whole, kLeast)), 0);
  EXPECT_EQ(Found(&kept, First(whole, kLeast + 1)), kLeast);
}

TEST_F(KeptConversationsTest, TheLeastRecentlyUsedMakesRoom) {
  KeptConversations kept(BytesOf(300) * 2 + BytesOf(1));
  const std::vector<std::vector<Token>> prompts = {RandomPrompt(301, 1), RandomPrompt(301, 2), RandomPrompt(301, 3)};
  for (int i : {0, 1}) Keep(&kept, First(prompts[i], 300));
  EXPECT_EQ(Found(&kept, prompts[0]), 300);
  const KeptPrefix held = kept.Find("raw", prompts[1]);
  EXPECT_EQ(Found(&kept, prompts[0]), 300);
  Keep(&kept, First(prompts[2], 300));
  EXPECT_EQ(kept.bytes(), BytesOf(300) * 2);
  EXPECT_EQ(Found(&kept, prompts[1]), 0);
  EXPECT_EQ(Found(&kept, prompts[0]), 300);
  EXPECT_EQ(Found(&kept, prompts[2]), 300);
  EXPECT_TRUE(SameBytes(*held.cache, Prefill(engine_.get(), First(prompts[1], 300)).cache)) << "it was held";

  Keep(&kept, RandomPrompt(700, 4));  // larger than all there is
  EXPECT_EQ(kept.bytes(), BytesOf(300) * 2) << "nothing was forgotten for it";
  KeptConversations none(0);
  Keep(&none, prompts[0]);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST_F(KeptConversationsTest, WhatCantBeReadIsNotKept) {
  KeptConversations kept(1 << 20);
  const SequenceId sequence = engine_->Open().value();
  RunTokens(engine_.get(), sequence, RandomPrompt(300, 1));
  EXPECT_FALSE(kept.Keep(engine_.get(), sequence, "raw", RandomPrompt(301, 1)).ok());
  EXPECT_EQ(kept.bytes(), 0u);
  EXPECT_EQ(Found(&kept, RandomPrompt(400, 1)), 0);
}

}  // namespace
}  // namespace lynx
