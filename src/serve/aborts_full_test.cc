// Requests that end early, ten thousand of them, leave nothing on either node. B10, fault 18, P7.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "serve/live_heap_test.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

constexpr int kAborts = 10'000;
constexpr int kWarmUp = 500;
constexpr int kClients = 16;  // half of them wait in the queue
constexpr std::uint64_t kSeed = 20'250'101;

// When the client leaves. kAnyTime: somebody else sets the flag. kDeadline: it stays, and its time is over.
enum Moment { kBeforeItBegan, kBeforeOffer, kAnchor, kResidual, kDecoding, kAnyTime, kDeadline, kMoments };

// Sets the flag at the first sign of life in that phase, or a few later.
class Leaver : public GenerateObserver {
 public:
  Leaver(Moment moment, int later, std::atomic<bool>* cancel) : moment_(moment), later_(later), cancel_(cancel) {}
  void OnTokens(const std::vector<Token>& tokens, int committed) override {
    if (committed > 1) return At(kDecoding);
    if (int(tokens.size()) > committed) At(kResidual);
  }
  void OnWaiting(const TransferProgress& progress) override {
    At(progress.bytes_expected == 0 ? kBeforeOffer : progress.stream == 0 ? kAnchor : kResidual);
  }

 private:
  void At(Moment now) {
    if (moment_ <= kDecoding && now >= moment_ && later_-- <= 0) *cancel_ = true;
  }
  const Moment moment_;
  int later_;
  std::atomic<bool>* const cancel_;
};

int CountEntries(const char* folder) {
  return int(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

struct Held {
  std::int64_t page_bytes = 0;  // on the prefill node
  std::int64_t heap_bytes = 0;  // of both nodes and the test
  int prefill_requests = 0, decode_requests = 0, descriptors = 0, threads = 0;
};

class Aborts : public ::testing::Test {
 protected:
  Aborts() {
    LinkOptions link;
    link.to = prefill_.address();
    link.bits_per_second = 100e6;
    link_ = LinkEmulator::Start(link).value();
    DecodeOptions options;
    options.codec_threads = 2;
    options.max_running = kClients / 2;
    options.prefill.addresses = {link_->listen_address()};
    node_ = DecodeNode::Start(engine_.get(), options).value();
    EXPECT_TRUE(node_->AwaitPrefill().ok());
  }
  static ToyOptions Toy() {
    ToyOptions toy = LongToy();
    toy.max_sequences = kClients;
    return toy;
  }

  Held Now() const {
    const EngineLoopStats stats = node_->stats();
    return {std::int64_t(prefill_.node().held_bytes()),
            LiveHeapBytes(),
            prefill_.node().open_requests(),
            stats.running + stats.waiting,
            CountEntries("/proc/self/fd") - 1,  // the folder's own
            CountEntries("/proc/self/task")};
  }
  void NoteMost() {
    const Held now = Now();
    most_.page_bytes = std::max(most_.page_bytes, now.page_bytes);
    most_.heap_bytes = std::max(most_.heap_bytes, now.heap_bytes);
    most_.prefill_requests = std::max(most_.prefill_requests, now.prefill_requests);
    most_.decode_requests = std::max(most_.decode_requests, now.decode_requests);
    most_.threads = std::max(most_.threads, now.threads);
  }

  // A client after the other until so many have left early, over all clients.
  void Ask(int client, int aborts) {
    Random random(kSeed + std::uint64_t(client));
    while (aborts_ < aborts) {
      const auto moment = Moment(random.Below(kMoments));
      const char* codecs[] = {"nested", "lynx", "raw"};
      GenerateRequest request =
          RequestFor(RandomPrompt(int(20 + random.Below(100)), random.Below(40)), codecs[random.Below(3)]);
      request.check = false;
      request.max_drafts = 2;  // then it waits
      request.max_new_tokens = 200;
      if (moment == kDeadline) request.deadline_ms = std::uint32_t(1 + random.Below(8));
      std::atomic<bool>& cancel = cancel_[std::size_t(client)];
      cancel = moment == kBeforeItBegan;
      Leaver leaver(moment, int(random.Below(3)), &cancel);
      const auto result = node_->Generate(request, &leaver, &cancel);
      if (result.ok() && result->reason != FinishReason::kStopped) continue;
      ++aborts_;
      ++left_[moment];
      EXPECT_TRUE(result.ok() || result.status().code() == ErrorCode::kLimit) << result.status().ToString();
    }
  }
  void Abort(int aborts) {
    aborts_ = 0;
    std::atomic<int> asking = kClients;
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.emplace_back([this, i, aborts, &asking] {
        Ask(i, aborts);
        --asking;
      });
    }
    Random random(kSeed);
    while (asking > 0) {
      cancel_[random.Below(kClients)] = true;
      NoteMost();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (std::thread& client : clients) client.join();
  }
  // Both nodes at rest, with the same prompts kept.
  Held Rest() {
    for (int i = 0; i < 3; ++i) {
      const auto result = node_->Generate(RequestFor(RandomPrompt(119, 100 + std::uint64_t(i))), nullptr, nullptr);
      EXPECT_TRUE(result.ok()) << result.status().ToString();
    }
    for (int i = 0; i < 500; ++i) {
      const Held now = Now();
      if (now.page_bytes == 0 && now.prefill_requests == 0 && now.decode_requests == 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return Now();
  }

  Watchdog watchdog_{600};
  const PrefillServer prefill_{Toy()};
  std::unique_ptr<LinkEmulator> link_;
  std::unique_ptr<Engine> engine_ = MakeToy(Toy());
  std::unique_ptr<DecodeNode> node_;
  std::array<std::atomic<bool>, kClients> cancel_;
  std::atomic<int> aborts_ = 0;
  std::array<std::atomic<int>, kMoments> left_ = {};
  Held most_;
};

TEST_F(Aborts, TenThousandLeaveNothing) {
  Abort(kWarmUp);
  const Held start = Rest();
  most_ = {};
  for (auto& left : left_) left = 0;
  Abort(kAborts);
  const Held end = Rest();
  EXPECT_EQ(end.page_bytes, 0);
  EXPECT_EQ(end.prefill_requests, 0);
  EXPECT_EQ(end.decode_requests, 0);
  EXPECT_EQ(end.descriptors, start.descriptors);
  EXPECT_EQ(end.threads, start.threads);
  // Of 10,000 page streams, requests or queue entries this would not be one each.
  EXPECT_LT(end.heap_bytes - start.heap_bytes, 16 * kAborts);

  // They do move.
  EXPECT_GT(most_.page_bytes, 0);
  EXPECT_GT(most_.prefill_requests, 1);
  EXPECT_GT(most_.decode_requests, kClients / 2);
  EXPECT_GT(most_.heap_bytes, start.heap_bytes + 64 * 1024);
  EXPECT_GE(most_.threads, start.threads + kClients / 2);
  for (int moment = 0; moment < kMoments; ++moment) EXPECT_GT(left_[std::size_t(moment)], kAborts / 100) << moment;
  node_.reset();
  link_.reset();
  EXPECT_LT(CountEntries("/proc/self/fd") - 1, start.descriptors);
  std::printf("%lld heap bytes more than before, at most %lld; page bytes at most %lld\n",
              static_cast<long long>(end.heap_bytes - start.heap_bytes),
              static_cast<long long>(most_.heap_bytes - start.heap_bytes), static_cast<long long>(most_.page_bytes));
}

}  // namespace
}  // namespace lynx
