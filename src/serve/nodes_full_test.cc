// Nodes over every combination, and failures at every point.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

constexpr int kWatchdogSeconds = 600;

class NodesFull : public ::testing::Test {
 protected:
  Watchdog watchdog_{kWatchdogSeconds};
};

std::unique_ptr<LinkEmulator> SlowLink(const std::string& to, double bits_per_second) {
  LinkOptions options;
  options.to = to;
  options.bits_per_second = bits_per_second;
  return LinkEmulator::Start(options).value();
}

TEST_F(NodesFull, EveryCombination) {
  const PrefillServer server;
  const auto link = SlowLink(server.address(), 10e6);
  DecodeClient direct(server.address()), slow(link->listen_address());
  int drafted = 0, accepted = 0, runs = 0;
  for (const int length : {1, 31, 32, 33, 255, 256, 257, 600}) {
    for (const std::string& codec : CodecNames()) {
      for (const auto method : {SamplingMethod::kCoupled, SamplingMethod::kRejection}) {
        for (const float temperature : {0.0f, 0.9f}) {
          SamplingOptions sampling = Coupled(temperature, std::uint64_t(length));
          sampling.method = method;
          sampling.top_k = temperature > 0 ? 40 : 0;
          sampling.top_p = 0.95f;
          GenerateRequest request = RequestFor(RandomPrompt(length, std::uint64_t(length)), codec, sampling);
          request.overlap = runs % 2 == 0;
          request.reuse = runs % 3 != 0;
          SCOPED_TRACE("run " + std::to_string(runs) + ": " + std::to_string(length) + " tokens, " + codec);
          const auto result = (runs % 4 == 3 ? slow : direct).Generate(request);
          ++runs;
          ASSERT_TRUE(result.ok()) << result.status().ToString();
          EXPECT_TRUE(result->checked && result->exact) << result->difference;
          if (method == SamplingMethod::kCoupled || temperature == 0) {
            EXPECT_EQ(result->tokens, Expected(request));
          }
          drafted += result->drafted;
          accepted += result->accepted;
        }
      }
    }
  }
  EXPECT_GT(drafted, 10);
  EXPECT_GT(accepted, 0);
}

void ExpectErrorOrExact(const Result<GenerateResult>& result, const std::vector<Token>& expected) {
  if (result.ok()) return ExpectExact(result, expected);
  EXPECT_FALSE(result.status().message().empty());
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
}

// Bytes that pass in both directions, hello to done.
std::array<std::size_t, 2> TotalBytes(const std::string& address, const GenerateRequest& request) {
  const Chopper whole(address, Chopper::kToClient, SIZE_MAX);
  DecodeClient client(whole.address());
  EXPECT_TRUE(client.Generate(request).ok());
  return {whole.passed(Chopper::kToServer), whole.passed(Chopper::kToClient)};
}

// B4, B6, faults 1, 5 to 7: a connection that ends after any number of bytes, or carries a damaged one: an error or the
// exact tokens, never others, and the prefill node goes on.
TEST_F(NodesFull, FaultsAnywhere) {
  constexpr int kPoints = 40;
  const PrefillServer server;
  for (const std::string codec : {"nested", "int8"}) {
    const GenerateRequest request = RequestFor(RandomPrompt(257, 1), codec);
    const auto expected = Expected(request);
    const auto total = TotalBytes(server.address(), request);
    for (const auto direction : {Chopper::kToServer, Chopper::kToClient}) {
      for (const auto fault : {Chopper::kCut, Chopper::kFlip}) {
        int failed = 0;
        for (int point = 0; point < kPoints; ++point) {
          const std::size_t limit =
              total[direction] * std::size_t(point) / kPoints + std::size_t(fault == Chopper::kFlip);
          SCOPED_TRACE(codec + (direction == Chopper::kToServer ? " up, " : " down, ") +
                       (fault == Chopper::kCut ? "cut after " : "flipped at ") + std::to_string(limit) + " of " +
                       std::to_string(total[direction]));
          const Chopper chopper(server.address(), direction, limit, fault);
          DecodeClient client(chopper.address());
          const auto result = client.Generate(request);
          ExpectErrorOrExact(result, expected);
          failed += !result.ok();
        }
        if (direction == Chopper::kToServer) {
          EXPECT_GT(failed, 1);
        } else if (fault == Chopper::kCut) {
          EXPECT_GT(failed, kPoints / 2);
        } else {
          EXPECT_LT(failed, kPoints / 4);  // nearly all of it is pages, which are sent again
        }
      }
    }
    DecodeClient client(server.address());
    ExpectExact(client.Generate(request), expected);
  }
}

TEST_F(NodesFull, PrefillNodeEndsAtAnyMoment) {
  const GenerateRequest request = RequestFor(RandomPrompt(257, 2));
  const auto expected = Expected(request);
  int failed = 0;
  for (int at = 0; at < 20; ++at) {
    SCOPED_TRACE("ended at call " + std::to_string(at));
    PrefillServer server;
    const auto link = SlowLink(server.address(), 1e6);
    DecodeClient client(link->listen_address());
    CountingObserver observer([&](int call) {
      if (call == at) server.Stop();
    });
    const auto result = client.Generate(request, &observer);
    ExpectErrorOrExact(result, expected);
    failed += !result.ok();
  }
  EXPECT_GT(failed, 0);  // later ones find the whole transfer in the kernel already
}

TEST_F(NodesFull, CancelAndGoOn) {
  const PrefillServer server;
  const auto link = SlowLink(server.address(), 20e6);
  DecodeClient client(link->listen_address());
  Random random(3);
  for (int run = 0; run < 60; ++run) {
    SCOPED_TRACE("run " + std::to_string(run));
    GenerateRequest request = RequestFor(RandomPrompt(1 + int(random.Below(300)), random.Below(5)));
    const auto expected = Expected(request);
    std::atomic<bool> cancel = false;
    const int at = int(random.Below(60));
    CountingObserver observer([&](int call) { cancel = cancel || call >= at; });
    const auto result = client.Generate(request, &observer, &cancel);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ASSERT_LE(result->tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(result->tokens.begin(), result->tokens.end(), expected.begin()));
    EXPECT_EQ(result->exact, result->checked) << result->difference;
  }
}

TEST_F(NodesFull, ManyDecodeNodesShareOnePrefillNode) {
  const PrefillServer server;
  std::vector<std::thread> threads;
  for (int who = 0; who < 6; ++who) {
    threads.emplace_back([&, who] {
      Random random(std::uint64_t(100 + who));
      DecodeClient client(server.address());
      for (int i = 0; i < 10; ++i) {
        const auto codecs = CodecNames();
        const GenerateRequest request = RequestFor(RandomPrompt(1 + int(random.Below(300)), random.Below(4)),
                                                   codecs[random.Below(codecs.size())], Coupled(0.8f, random.Next()));
        if (random.Below(4) == 0) {
          std::atomic<bool> cancel = true;
          (void)client.Generate(request, nullptr, &cancel);
        }
        ExpectExact(client.Generate(request), Expected(request));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lynx
