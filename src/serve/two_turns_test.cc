// Conversations of several turns on a decode node that keeps their caches: only what is new travels, and every answer
// is the one that decoding on the kept cache gives.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "serve/decode_node.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

class TwoTurns : public testing::Test {
 protected:
  static DecodeOptions Options(const std::string& address) {
    DecodeOptions options;
    options.max_running = 3;
    options.keep_bytes = 1 << 20;
    options.prefill.addresses = {address};
    return options;
  }
  void Start(const DecodeOptions& options) {
    node_.reset();
    ToyOptions toy = LongToy();
    toy.max_sequences = 4;
    engine_ = MakeToy(toy);
    auto node = DecodeNode::Start(engine_.get(), options);
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    node_ = std::move(node).value();
    ASSERT_TRUE(node_->AwaitPrefill().ok());
  }
  GenerateResult Exact(const GenerateRequest& request, GenerateObserver* observer = nullptr) {
    const auto result = node_->Generate(request, observer, nullptr);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    if (!result.ok()) return {};
    EXPECT_TRUE(result->checked);
    EXPECT_TRUE(result->exact) << result->difference;
    return *result;
  }
  std::vector<Result<GenerateResult>> AtOnce(const std::vector<GenerateRequest>& requests) {
    std::vector<Result<GenerateResult>> results(requests.size(), IoError("not run"));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = node_->Generate(requests[i], nullptr, nullptr); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  Watchdog watchdog_{120};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DecodeNode> node_;
};

std::uint64_t BytesOf(const GenerateResult& result) {
  return std::accumulate(result.stream_bytes.begin(), result.stream_bytes.end(), std::uint64_t{0});
}

// The next turn: what was said and answered, and `count` tokens more.
GenerateRequest GoOn(GenerateRequest request, const GenerateResult& answer, int count, std::uint64_t seed = 99) {
  request.prompt.insert(request.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  const auto more = RandomPrompt(count, seed);
  request.prompt.insert(request.prompt.end(), more.begin(), more.end());
  return request;
}

TEST_F(TwoTurns, OnlyTheRestTravels) {
  const PrefillServer server;
  for (const std::string codec : {"raw", "nested", "lynx", "int8", "paper"}) {
    for (const SamplingOptions& sampling : {SamplingOptions{}, Coupled(0.8f, 3)}) {
      SCOPED_TRACE(codec + ", temperature " + std::to_string(sampling.temperature));
      Start(Options(server.address()));
      GenerateRequest request = RequestFor(RandomPrompt(500, 1), codec, sampling);
      const GenerateResult first = Exact(request);
      ASSERT_EQ(first.tokens.size(), 40u);
      EXPECT_EQ(first.kept_tokens, 0);
      GenerateRequest second = GoOn(request, first, 31);
      const GenerateResult kept = Exact(second);
      EXPECT_EQ(kept.kept_tokens, 539);
      EXPECT_EQ(kept.elements, 64 * 32);
      // Bit for bit what the prefill node would send: by this codec alone.
      if (codec == "raw") {
        EXPECT_EQ(kept.tokens, Expected(second));
      }
      second.reuse = false;
      const GenerateResult sent = Exact(second);
      EXPECT_EQ(sent.kept_tokens, 0);
      EXPECT_EQ(sent.tokens, Expected(second));
      EXPECT_LT(BytesOf(kept) * 5, BytesOf(sent)) << BytesOf(kept) << " of " << BytesOf(sent);
      if (codec == "raw") {
        EXPECT_LT(BytesOf(kept) * 14, BytesOf(sent)) << "32 of 571 tokens";
      }
    }
  }
}

TEST_F(TwoTurns, EachTurnGoesOnFromTheLast) {
  const PrefillServer server;
  Start(Options(server.address()));
  GenerateRequest request = RequestFor(RandomPrompt(280, 1), "nested", Coupled(0.7f, 4));
  const auto token_bytes = std::uint64_t(engine_->info().shape.BytesPerToken()) + sizeof(Token);
  int had = 0;
  for (std::uint64_t turn = 0; turn < 6; ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    const GenerateResult result = Exact(request);
    EXPECT_EQ(result.kept_tokens, had);
    EXPECT_GE(result.peak_kv_bytes, std::uint64_t(had + int(request.prompt.size())) * (token_bytes - sizeof(Token)));
    had = int(request.prompt.size()) + 39;
    EXPECT_EQ(node_->stats().kept_bytes, std::uint64_t(had) * token_bytes) << "one cache per conversation";
    request = GoOn(std::move(request), result, 10 + 13 * int(turn), turn);
  }
}

TEST_F(TwoTurns, NotWithoutMemoryOrWithAnotherCodec) {
  const PrefillServer server;
  DecodeOptions options = Options(server.address());
  Start(options);
  const GenerateRequest request = RequestFor(RandomPrompt(300, 1), "nested");
  GenerateRequest second = GoOn(request, Exact(request), 20);
  second.codec = "nested:anchor=3";
  EXPECT_EQ(Exact(second).kept_tokens, 0);
  second.codec = "int8";
  EXPECT_EQ(Exact(second).kept_tokens, 0);
  options.keep_bytes = 0;
  Start(options);
  Exact(request);
  EXPECT_EQ(node_->stats().kept_bytes, 0u);
  EXPECT_EQ(Exact(request).kept_tokens, 0);
}

// All but the last token is there, exactly or with more behind it; a whole page is, and one token less.
TEST_F(TwoTurns, EdgesOfThePrefix) {
  const PrefillServer server;
  const auto whole = RandomPrompt(700, 1);
  for (const std::string codec : {"nested", "lynx"}) {
    for (const int length : {700, 513, 512, 300, 257, 256}) {
      SCOPED_TRACE(codec + ", " + std::to_string(length));
      Start(Options(server.address()));
      Exact(RequestFor(whole, codec));
      const GenerateResult again = Exact(RequestFor({whole.begin(), whole.begin() + length}, codec));
      EXPECT_EQ(again.kept_tokens, length > 256 ? length - 1 : 0);
    }
  }
  GenerateRequest request = RequestFor(whole);
  const GenerateResult first = Exact(request);
  request.prompt.insert(request.prompt.end(), first.tokens.begin(), first.tokens.end());
  EXPECT_EQ(Exact(request).kept_tokens, 739) << "the newest token of an answer has no cell";
}

TEST_F(TwoTurns, MemoryIsBounded) {
  const PrefillServer server;
  DecodeOptions options = Options(server.address());
  options.keep_bytes = 2 * 400 * (64 * 2 + sizeof(Token));
  Start(options);
  std::vector<GenerateRequest> requests;
  for (std::uint64_t i = 0; i < 5; ++i) {
    requests.push_back(RequestFor(RandomPrompt(300, i)));
    Exact(requests.back());
    EXPECT_LE(node_->stats().kept_bytes, options.keep_bytes);
  }
  EXPECT_GT(node_->stats().kept_bytes, options.keep_bytes / 2);
  EXPECT_EQ(Exact(requests[4]).kept_tokens, 299);
  EXPECT_EQ(Exact(requests[3]).kept_tokens, 299);
  EXPECT_EQ(Exact(requests[0]).kept_tokens, 0);
}

TEST_F(TwoTurns, WhatWasStoppedIsKeptAsFarAsItIsRight) {
  const PrefillServer server;
  Start(Options(server.address()));
  for (int stop_at = 0; stop_at < 24; stop_at += 2) {
    SCOPED_TRACE("stopped at call " + std::to_string(stop_at));
    std::atomic<bool> cancel = false;
    CountingObserver observer([&](int call) { cancel = cancel || call == stop_at; });
    const GenerateRequest request = RequestFor(RandomPrompt(300, std::uint64_t(stop_at)), "raw");
    const auto stopped = node_->Generate(request, &observer, &cancel);
    ASSERT_TRUE(stopped.ok()) << stopped.status().ToString();
    const GenerateRequest second = GoOn(request, *stopped, 20);
    const GenerateResult result = Exact(second);
    EXPECT_EQ(result.tokens, Expected(second));
    if (stopped->tokens.size() > 1) {
      EXPECT_EQ(result.kept_tokens, 300 + int(stopped->tokens.size()) - 1);
    }
  }
}

// Requests at once that begin with the same conversation, and take turns on too few sequences.
TEST_F(TwoTurns, ManyGoOnFromOne) {
  const PrefillServer server;
  for (const int slice : {256, 5}) {
    DecodeOptions options = Options(server.address());
    options.max_running = slice == 5 ? 2 : 3;
    options.slice_tokens = slice;
    Start(options);
    const GenerateRequest request = RequestFor(RandomPrompt(400, 1), "lynx", Coupled(0.7f, 5));
    const GenerateResult first = Exact(request);
    std::vector<GenerateRequest> requests;
    for (std::uint64_t i = 0; i < 6; ++i) requests.push_back(GoOn(request, first, 30 + int(i), i));
    for (const auto& result : AtOnce(requests)) {
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_TRUE(result->exact) << result->difference;
      EXPECT_GE(result->kept_tokens, 439);
    }
    if (slice == 5) {
      EXPECT_GT(node_->stats().parked, 2u);
    }
    node_.reset();
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(engine_->Open().ok()) << "a sequence is still open";
  }
}

// The prefill node dies at some event of the second turn: the prefix is written again, token 0 stays.
TEST_F(TwoTurns, AnotherPrefillNodeTakesOver) {
  int retried = 0;
  for (int death = 0; death < 6; death += 2) {
    SCOPED_TRACE("dies at call " + std::to_string(death));
    auto dying = std::make_unique<PrefillServer>();
    Start(Options(dying->address()));
    const GenerateRequest request = RequestFor(RandomPrompt(300, std::uint64_t(death)), "raw");
    const GenerateRequest second = GoOn(request, Exact(request), 500);
    const auto result = GenerateWhileDying(node_.get(), second, &dying, death);
    ASSERT_TRUE(result.ok() || result.status().code() == ErrorCode::kIo) << result.status().ToString();
    if (!result.ok()) continue;
    ExpectExact(result, Expected(second));
    EXPECT_EQ(result->kept_tokens, 339);
    retried += result->retries;
  }
  EXPECT_GT(retried, 0);
}

}  // namespace
}  // namespace lynx
