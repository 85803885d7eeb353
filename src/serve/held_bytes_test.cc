// P4, B8: the memory of a prefill node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "net/net_node.h"
#include "serve/held_bytes.h"
#include "serve/node_layout.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

TEST(HeldBytes, CountsWhatLives) {
  int freed = 0;
  HeldBytes held(100, [&freed] { ++freed; });
  EXPECT_TRUE(held.MayGrow(1));
  auto bound = held.Hold(1, 90);
  EXPECT_TRUE(held.MayGrow(1));
  SharedBytes page = held.Keep(1, std::vector<std::byte>(20, std::byte{7}));
  EXPECT_EQ(*page, std::vector<std::byte>(20, std::byte{7}));
  EXPECT_EQ(held.total(), 110u);
  EXPECT_FALSE(held.MayGrow(1));
  EXPECT_TRUE(held.MayGrow(2));  // nothing is held for it
  const auto other = held.Hold(2, 5);
  EXPECT_FALSE(held.MayGrow(2));
  bound.reset();
  EXPECT_TRUE(held.MayGrow(1) && held.MayGrow(2));
  const SharedBytes copy = page;
  page.reset();
  EXPECT_EQ(held.total(), 25u);
  const std::weak_ptr<const std::vector<std::byte>> weak = copy;
  EXPECT_EQ(freed, 1);
}

TEST(HeldBytes, AWeakPointerHoldsNothing) {
  HeldBytes held(100, [] {});
  SharedBytes page = held.Keep(1, std::vector<std::byte>(20));
  const std::weak_ptr<const std::vector<std::byte>> weak = page;
  page.reset();
  EXPECT_EQ(held.total(), 0u);
}

// A decode node that takes what it accepts.
class Taker {
 public:
  explicit Taker(const std::string& address) {
    NetOptions options;
    options.node.role = NodeRole::kDecode;
    options.node.epoch = 5;
    options.node.layout = LayoutOf(MakeToy(LongToy())->info());
    options.node.codecs = CodecNames();
    net_ = NetNode::Start(options, [this](TransferNode& node, TransferEvent event, TimeNs now) {
             OnEvent(node, std::move(event), now);
           }).value();
    peer_ = net_->Connect(address, kSecondNs).value();
    Wait([this] { return up_; });
  }
  // Not to accept: offers are not even answered.
  void Ask(const std::vector<Token>& prompt, bool accepts, std::uint32_t deadline_ms = 0) {
    net_->Call([&](TransferNode& node, TimeNs now) {
      accepts_ = accepts;
      TransferRequest request;
      request.tokens = prompt;
      request.codec = "raw";
      request.deadline_ms = deadline_ms;
      EXPECT_TRUE(node.Request(peer_, request, now).ok());
    });
  }
  void AwaitTokens(int count) {
    Wait([&] { return prefilled_ >= count; });
  }
  void AwaitEnds(int count) {
    Wait([&] { return int(ends_.size()) >= count; });
  }
  std::vector<Status> ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }
  std::uint64_t page_bytes() const { return page_bytes_; }

 private:
  void Wait(const std::function<bool()>& until) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, until);
  }
  void OnEvent(TransferNode& node, TransferEvent event, TimeNs now) {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<PeerUp>(event)) up_ = true;
    if (const auto* offer = std::get_if<OfferArrived>(&event); offer != nullptr && accepts_) {
      EXPECT_TRUE(node.AcceptOffer(offer->request, now).ok());
    }
    if (std::holds_alternative<PrefillDoneArrived>(event)) ++prefilled_;
    if (const auto* page = std::get_if<PageArrived>(&event)) page_bytes_ += page->bytes->size();
    if (const auto* finished = std::get_if<RequestFinished>(&event)) ends_.push_back(finished->status);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool up_ = false, accepts_ = true;
  int prefilled_ = 0;
  std::atomic<std::uint64_t> page_bytes_ = 0;
  std::vector<Status> ends_;
  PeerId peer_ = 0;
  std::unique_ptr<NetNode> net_;  // last: its thread uses the rest
};

// What one page's tokens take at most, all layers, by the raw codec; a toy token has 64 elements.
constexpr std::uint64_t kBlockBytes = 256 * 64 * 2 + 4096;

class HeldByNode : public ::testing::Test {
 protected:
  explicit HeldByNode(std::uint64_t max_held_bytes = 1) {
    PrefillOptions options;
    options.listen = "127.0.0.1:0";
    options.kept_caches = 2;
    options.codec_threads = 2;
    options.max_held_bytes = max_held_bytes;
    node_ = PrefillNode::Start(engine_.get(), options).value();
    thread_ = std::thread([this] { node_->Run(stop_); });
  }
  ~HeldByNode() override {
    stop_ = true;
    thread_.join();
  }

  Watchdog watchdog_{120};
  std::unique_ptr<Engine> engine_ = MakeToy(LongToy());
  std::unique_ptr<PrefillNode> node_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// A transfer many times the budget goes through, a page's tokens at a time.
TEST_F(HeldByNode, ATransferMayBeLargerThanTheBudget) {
  Taker taker(node_->listen_address());
  for (int i = 1; i <= 3; ++i) {
    taker.Ask(RandomPrompt(900, std::uint64_t(i)), true);
    taker.AwaitEnds(i);
    EXPECT_TRUE(taker.ends().back().ok()) << taker.ends().back().ToString();
    EXPECT_GE(taker.page_bytes(), std::uint64_t(i) * 900 * 64 * 2);
  }
  while (node_->held_bytes() > 0) std::this_thread::yield();  // until the last DONE has come
}

// Decode nodes that take nothing: what is held for each of them is a page's tokens, their prompts are read, others'
// requests go on, and nothing is left when they are gone.
TEST_F(HeldByNode, WhoeverTakesNothingHoldsLittleAndNobodyUp) {
  {
    Taker first(node_->listen_address()), second(node_->listen_address());
    for (int i = 0; i < 5; ++i) {
      first.Ask(RandomPrompt(900, std::uint64_t(i)), false);
      second.Ask(RandomPrompt(700, std::uint64_t(10 + i)), false);
    }
    first.AwaitTokens(1);
    second.AwaitTokens(1);
    Taker honest(node_->listen_address());
    for (int i = 1; i <= 3; ++i) {
      honest.Ask(RandomPrompt(600, std::uint64_t(20 + i)), true);
      honest.AwaitEnds(i);
      EXPECT_TRUE(honest.ends().back().ok()) << honest.ends().back().ToString();
    }
    while (node_->held_bytes() > 2 * kBlockBytes) std::this_thread::yield();  // until the last DONE has come
    EXPECT_GT(node_->held_bytes(), 0u);
  }
  while (node_->held_bytes() > 0) std::this_thread::yield();
}

// The deadline ends what waits for memory too, and the next one begins (B8, fault 17).
TEST_F(HeldByNode, DeadlinesFreeWhatIsHeld) {
  Taker taker(node_->listen_address());
  for (int i = 0; i < 3; ++i) taker.Ask(RandomPrompt(900, std::uint64_t(i)), false, 200);
  taker.AwaitEnds(3);
  taker.Ask(RandomPrompt(300, 9), true);
  taker.AwaitEnds(4);
  EXPECT_TRUE(taker.ends().back().ok()) << taker.ends().back().ToString();
}

}  // namespace
}  // namespace lynx
