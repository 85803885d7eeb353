// A decode node among many: requests that share its engine, several prefill nodes, nodes that come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "serve/decode_node.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

using testing::HasSubstr;

class ManyNodes : public testing::Test {
 protected:
  std::unique_ptr<DecodeNode> Start(DecodeOptions options) {
    ToyOptions toy = LongToy();
    toy.max_sequences = 8;
    engine_ = MakeToy(toy);
    auto node = DecodeNode::Start(engine_.get(), options);
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    return std::move(node).value();
  }
  static DecodeOptions Options(std::vector<std::string> addresses, int max_running = 4) {
    DecodeOptions options;
    options.max_running = max_running;
    options.prefill.addresses = std::move(addresses);
    return options;
  }

  Watchdog watchdog_{120};
  std::unique_ptr<Engine> engine_;
};

// Runs requests on threads of their own, all at once.
std::vector<Result<GenerateResult>> RunAll(DecodeNode* node, const std::vector<GenerateRequest>& requests) {
  std::vector<Result<GenerateResult>> results(requests.size(), IoError("not run"));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = node->Generate(requests[i], nullptr, nullptr); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_F(ManyNodes, RequestsShareTheEngine) {
  const PrefillServer one, two;
  const auto node = Start(Options({one.address(), two.address()}));
  ASSERT_TRUE(node->AwaitPrefill().ok());
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    const char* codecs[] = {"nested", "lynx", "int8"};
    requests.push_back(RequestFor(RandomPrompt(40 + 30 * i, std::uint64_t(i)), codecs[i % 3],
                                  i % 2 == 0 ? SamplingOptions{} : Coupled(0.7f, std::uint64_t(i))));
  }
  const auto results = RunAll(node.get(), requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    ExpectExact(results[i], Expected(requests[i]));
  }
  const EngineLoopStats stats = node->stats();
  EXPECT_GT(stats.shared_steps, 0u);
  EXPECT_GT(stats.step_inputs, stats.steps);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(engine_->Open().ok()) << "a sequence is still open";
}

TEST_F(ManyNodes, TooManyAreRefused) {
  const PrefillServer server;
  DecodeOptions options = Options({server.address()}, 1);
  options.max_waiting = 1;
  const auto node = Start(options);
  ASSERT_TRUE(node->AwaitPrefill().ok());
  GenerateRequest request = RequestFor(RandomPrompt(200, 1));
  request.max_new_tokens = 400;
  const auto results = RunAll(node.get(), std::vector<GenerateRequest>(6, request));
  int refused = 0;
  for (const auto& result : results) {
    if (result.ok()) continue;
    ++refused;
    EXPECT_EQ(result.status().code(), ErrorCode::kLimit);
    EXPECT_THAT(result.status().message(), HasSubstr("busy"));
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 6);
  EXPECT_TRUE(node->Generate(RequestFor(RandomPrompt(20, 2)), nullptr, nullptr).ok());
}

// Requests take turns on too few sequences: the cache of one that waits is restored byte for byte (the check compares
// it), whatever it has written so far.
TEST_F(ManyNodes, TurnsAreTaken) {
  const PrefillServer server;
  DecodeOptions options = Options({server.address()}, 2);
  options.slice_tokens = 5;
  const auto node = Start(options);
  ASSERT_TRUE(node->AwaitPrefill().ok());
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(
        RequestFor(RandomPrompt(20 + 50 * i, std::uint64_t(i)), "nested", Coupled(0.7f, std::uint64_t(i))));
  }
  const auto results = RunAll(node.get(), requests);
  for (std::size_t i = 0; i < requests.size(); ++i) ExpectExact(results[i], Expected(requests[i]));
  EXPECT_GT(node->stats().parked, 4u);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(engine_->Open().ok()) << "a sequence is still open";
}

TEST_F(ManyNodes, WhoeverWaitsMayLeave) {
  const PrefillServer server;
  const auto node = Start(Options({server.address()}, 1));
  ASSERT_TRUE(node->AwaitPrefill().ok());
  GenerateRequest request = RequestFor(RandomPrompt(100, 1));
  request.max_new_tokens = 600;
  std::atomic<bool> leave = false;
  CountingObserver first([&](int call) { leave = leave || call == 5; });  // once the other runs for sure
  std::thread running([&] { EXPECT_TRUE(node->Generate(request, &first, nullptr).ok()); });
  while (node->stats().running == 0) std::this_thread::yield();
  const auto result = node->Generate(request, nullptr, &leave);
  running.join();
  if (!result.ok()) {
    EXPECT_THAT(result.status().message(), HasSubstr("before it began"));
  }
}

// The node that serves dies at some event of the request; the other one takes over, token 0 stays, the answer is exact.
TEST_F(ManyNodes, AnotherPrefillNodeTakesOver) {
  int retried = 0;
  for (int death = 0; death < 12; death += 2) {
    SCOPED_TRACE("dies at call " + std::to_string(death));
    auto dying = std::make_unique<PrefillServer>();
    const auto node = Start(Options({dying->address()}));
    ASSERT_TRUE(node->AwaitPrefill().ok());
    const GenerateRequest request = RequestFor(RandomPrompt(600, std::uint64_t(death)));
    const auto result = GenerateWhileDying(node.get(), request, &dying, death);
    ASSERT_TRUE(result.ok() || result.status().code() == ErrorCode::kIo) << result.status().ToString();
    if (result.ok()) {
      ExpectExact(result, Expected(request));
      retried += result->retries;
    }
    EXPECT_TRUE(node->Generate(request, nullptr, nullptr).ok()) << "the node is of no use afterwards";
  }
  EXPECT_GT(retried, 0);
}

TEST_F(ManyNodes, APrefillNodeEndsWhatItHasBegun) {
  const auto prefill_engine = MakeToy(LongToy());
  PrefillOptions prefill;
  prefill.listen = "127.0.0.1:0";
  prefill.kept_caches = 0;
  auto server = PrefillNode::Start(prefill_engine.get(), prefill).value();
  std::atomic<bool> stop = false;
  std::thread serving([&] { server->Run(stop); });
  DecodeOptions options = Options({server->listen_address()});
  options.retries = 0;
  const auto node = Start(options);
  ASSERT_TRUE(node->AwaitPrefill().ok());
  const GenerateRequest request = RequestFor(RandomPrompt(900, 1));
  CountingObserver observer([&](int call) { stop = stop || call == 0; });  // in the middle of it
  ExpectExact(node->Generate(request, &observer, nullptr), Expected(request));
  serving.join();
  EXPECT_FALSE(node->Generate(request, nullptr, nullptr).ok());
}

TEST_F(ManyNodes, NobodyThere) {
  const auto node = Start(Options({"127.0.0.1:1"}));
  EXPECT_EQ(node->AwaitPrefill().code(), ErrorCode::kIo);
  const auto result = node->Generate(RequestFor(RandomPrompt(20, 2)), nullptr, nullptr);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::kIo);
  EXPECT_THAT(result.status().message(), HasSubstr("127.0.0.1:1"));
}

TEST_F(ManyNodes, TheListIsReadAgain) {
  const std::string path = testing::TempDir() + "lynx_prefill_nodes.txt";
  const auto write = [&path](const std::string& text) { std::ofstream(path) << text; };
  write("# nobody yet\n127.0.0.1:1\n");
  DecodeOptions options;
  options.prefill.file = path;
  const auto node = Start(options);
  EXPECT_FALSE(node->AwaitPrefill().ok());
  const PrefillServer server;
  write("  " + server.address() + "  # the first\n");
  for (int i = 0; i < 100 && !node->AwaitPrefill().ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ExpectExact(node->Generate(RequestFor(RandomPrompt(20, 2)), nullptr, nullptr),
              Expected(RequestFor(RandomPrompt(20, 2))));
  write("no address\n");  // kept: the old list
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(node->PrefillNodes().size(), 1u);
  std::filesystem::remove(path);
  options.prefill.file = "/nonexistent/list";
  EXPECT_THAT(DecodeNode::Start(engine_.get(), options).status().message(), HasSubstr("can't read the list"));
}

// Fault 28: more anchors than the link carries. Whoever is let in has its anchor soon and its residual by its deadline;
// the others wait for their turn, and the control shows that all at once would have waited on the link.
TEST_F(ManyNodes, AnchorsThatTheLinkCanNotCarryWait) {
  const PrefillServer server;
  LinkOptions link;
  link.to = server.address();
  link.bits_per_second = 4e6;
  const auto emulator = LinkEmulator::Start(link).value();
  const auto slowest_anchor = [&](double anchors_s) {
    DecodeOptions options = Options({emulator->listen_address()}, 5);
    options.anchors_s = anchors_s;
    const auto node = Start(options);
    EXPECT_TRUE(node->AwaitPrefill().ok());
    EXPECT_TRUE(node->Generate(RequestFor(RandomPrompt(900, 1)), nullptr, nullptr).ok());  // the rate is known now
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 5; ++i) {
      requests.push_back(RequestFor(RandomPrompt(900, 2 + std::uint64_t(i))));
      requests.back().deadline_ms = 30'000;
      requests.back().anchor_order = AnchorOrder::kFirst;
    }
    double slowest = 0;
    for (const auto& result : RunAll(node.get(), requests)) {
      EXPECT_TRUE(result.ok()) << result.status().ToString();
      if (result.ok()) slowest = std::max(slowest, result->stream_done_s[0]);
    }
    return slowest;
  };
  const double together = slowest_anchor(1e9), in_turn = slowest_anchor(0.01);
  EXPECT_LT(in_turn, 0.6 * together);
}

}  // namespace
}  // namespace lynx
