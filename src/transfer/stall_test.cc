// Transfers that do not go on: what never comes, and peers that begin again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

// Keeps frames from arriving.
void Drop(Loopback* pair, const std::function<bool(const std::vector<std::byte>&)>& drops) {
  pair->on_way = [drops](Loopback::Direction, std::vector<std::byte> bytes) {
    Loopback::Pieces frames = SplitFrames(bytes);
    std::erase_if(frames, drops);
    return frames;
  };
}

// B11, fault 16: the residual never comes. The request ends by itself within the stall limit and a heartbeat, on both
// sides; the connection and what comes later on it do not.
TEST(Stall, AResidualThatNeverComes) {
  for (const bool pull : {true, false}) {
    NodeConfig config = TestConfig(NodeRole::kDecode);
    config.pull = pull;
    Loopback pair(TestConfig(NodeRole::kPrefill), config);
    pair.Run();
    Drop(&pair, [](const auto& frame) {
      return StreamOf(frame) > 0 && (TypeOf(frame) == FrameType::kPage || TypeOf(frame) == FrameType::kEnd);
    });
    pair.Request();
    pair.Run();
    EXPECT_EQ(CountStarting(pair.decode_events, "complete 0"), 1);
    pair.Wait(9 * kSecondNs);
    EXPECT_EQ(CountStarting(pair.decode_events, "finished"), 0);
    pair.Wait(2 * kSecondNs);
    EXPECT_EQ(pair.decode_events.back(), "finished 1 io: nothing of what was granted has come for 10 s");
    EXPECT_EQ(pair.prefill_events.back(), "finished 1 io: nothing of what was granted has come for 10 s");
    pair.on_way = nullptr;
    pair.Request();
    pair.Run();
    EXPECT_EQ(pair.decode_events.back(), "finished 2 ok");
  }
}

// A prompt that takes long to read is no stall, nor is a residual that others' anchors pass.
TEST(Stall, WaitingForItsTurnIsNone) {
  Loopback pair;
  pair.asleep = true;
  pair.Run();
  pair.Request();
  pair.Wait(30 * kSecondNs);
  EXPECT_EQ(pair.decode.OpenRequests(), 1u);
  pair.asleep = false;
  Drop(&pair, [](const auto& frame) {
    const bool end_of_second = TypeOf(frame) == FrameType::kEnd && frame[8] == std::byte{2};
    return StreamOf(frame) > 0 && (TypeOf(frame) == FrameType::kPage || end_of_second);
  });
  pair.Request();
  for (int i = 0; i < 10; ++i) {
    pair.Run();
    pair.Wait(3 * kSecondNs);
    pair.Request();  // its anchor passes, its residual does not, so that it fails at END
    pair.Run();
    EXPECT_THAT(pair.decode_events.back(), HasSubstr("END: totals"));
    EXPECT_EQ(pair.decode.OpenRequests(), 2u);
  }
  pair.Wait(11 * kSecondNs);
  EXPECT_EQ(pair.decode.OpenRequests(), 1u);
  EXPECT_THAT(pair.decode_events.back(), HasSubstr("finished 2 io: nothing of what was granted"));
}

// B8, fault 9: a page that trickles in is slow, not stalled; the deadline ends it.
TEST(Stall, ATricklingPage) {
  Loopback pair;
  pair.transfer = {.streams = 1, .parts = 1, .pages = 1, .page_bytes = 1000};
  pair.Run();
  std::vector<std::byte> page;
  pair.on_way = [&page](Loopback::Direction, std::vector<std::byte> bytes) {
    Loopback::Pieces frames = SplitFrames(bytes);
    std::erase_if(frames, [&](const auto& frame) {
      if (TypeOf(frame) == FrameType::kPage) page = frame;
      return !page.empty();
    });
    return frames;
  };
  pair.Request(60'000);
  pair.Run();
  ASSERT_FALSE(page.empty());
  for (std::size_t i = 0; i < 60; ++i) {
    pair.now += kSecondNs;
    pair.decode.Feed(pair.at_decode, std::span(page).subspan(8 * i, 8), pair.now);
    pair.decode.Tick(pair.now);
    pair.Serve();
    ASSERT_EQ(pair.decode.OpenRequests(), i < 59 ? 1u : 0u) << i;
  }
  EXPECT_THAT(pair.decode_events.back(), HasSubstr("finished 1 limit: deadline"));
}

// B10, fault 17: a deadline ends the request on each side by its own clock, whatever still works between them.
TEST(Stall, DeadlinesOfBothSides) {
  for (const bool to_prefill : {true, false}) {
    Loopback pair;
    pair.Run();
    Drop(&pair, [](const auto& frame) { return TypeOf(frame) == FrameType::kPage; });
    pair.Request(2000);
    pair.Run();
    pair.on_way = [to_prefill](Loopback::Direction direction, std::vector<std::byte> bytes) {
      Loopback::Pieces frames = SplitFrames(bytes);
      std::erase_if(frames, [&](const auto& frame) {
        return TypeOf(frame) == FrameType::kAbort && (direction == Loopback::kToPrefill) == to_prefill;
      });
      return frames;
    };
    pair.Wait(2500 * kMillisecondNs);
    EXPECT_EQ(pair.decode.OpenRequests() + pair.prefill.OpenRequests(), 0u);
    EXPECT_EQ(CountStarting(pair.decode_events, "finished 1"), 1);
    EXPECT_EQ(CountStarting(pair.prefill_events, "finished 1"), 1);
  }
}

// Everything that a connection carried to the decode node, and what the node made of it.
class Restart : public ::testing::Test {
 protected:
  Restart() {
    pair_.Run();
    pair_.on_way = [this](Loopback::Direction direction, std::vector<std::byte> bytes) {
      if (direction == Loopback::kToDecode) carried_.insert(carried_.end(), bytes.begin(), bytes.end());
      return Loopback::Pieces{std::move(bytes)};
    };
    pair_.Request();
    pair_.Run();
    EXPECT_EQ(pair_.decode_events.back(), "finished 1 ok");
    EXPECT_EQ(pair_.pages.size(), 18u);
  }
  // A connection of the decode node to `prefill`, up and with an accepted request that has no page yet.
  RequestId Reconnect(TransferNode* prefill) {
    pair_.decode.RemovePeer(pair_.at_decode, {}, pair_.now);
    at_prefill_ = prefill->AddPeer(pair_.now);
    pair_.at_decode = pair_.decode.AddPeer(pair_.now);
    Exchange(prefill);
    const RequestId request = pair_.Request();
    Exchange(prefill);
    EXPECT_TRUE(prefill->Offer({at_prefill_, request.id}, pair_.transfer.Offer(), pair_.now).ok());
    Exchange(prefill);
    pair_.pages.clear();
    return request;
  }
  void Exchange(TransferNode* prefill) {
    for (int i = 0; i < 3; ++i) {
      prefill->Feed(at_prefill_, pair_.Take(&pair_.decode, pair_.at_decode), pair_.now);
      while (prefill->Poll()) continue;
      pair_.decode.Feed(pair_.at_decode, pair_.Take(prefill, at_prefill_), pair_.now);
      pair_.Serve();
    }
  }

  Loopback pair_;
  std::vector<std::byte> carried_;
  PeerId at_prefill_ = 0;
};

// B7, fault 19: frames of the prefill node's former life, at the same address.
TEST_F(Restart, NothingOfAnotherEpochIsTaken) {
  NodeConfig config = TestConfig(NodeRole::kPrefill);
  config.epoch += 1;
  TransferNode prefill(config);
  Reconnect(&prefill);
  pair_.decode.Feed(pair_.at_decode, carried_, pair_.now);
  pair_.Serve();
  EXPECT_EQ(pair_.pages.size(), 0u);
  EXPECT_THAT(pair_.decode_events.back(), HasSubstr("another epoch: the peer has restarted"));
  EXPECT_EQ(pair_.decode.OpenRequests(), 0u);
}

// B7, fault 11: frames of a former connection to the same process, as something between the nodes may repeat them: they
// are another request's.
TEST_F(Restart, NothingOfAFormerConnectionIsTaken) {
  const RequestId request = Reconnect(&pair_.prefill);
  EXPECT_GT(request.id, 1u);
  pair_.decode.Feed(pair_.at_decode, carried_, pair_.now);
  pair_.Serve();
  EXPECT_EQ(pair_.pages.size(), 0u);
  EXPECT_EQ(CountStarting(pair_.decode_events, "down"), 1);  // that of the first connection
  // The request has its own pages.
  ASSERT_TRUE(pair_.prefill.SendPrefillDone({at_prefill_, request.id}, {.token0 = 7}, pair_.now).ok());
  pair_.transfer.PushAll(&pair_.prefill, {at_prefill_, request.id}, pair_.now);
  for (int i = 0; i < 10; ++i) Exchange(&pair_.prefill);
  EXPECT_EQ(pair_.pages.size(), 18u);
  EXPECT_EQ(pair_.decode_events.back(), "finished 2 ok");
}

// Fault 20: the decode node restarts in the middle; the prefill node keeps nothing of the former one.
TEST_F(Restart, ADecodeNodeThatBeginsAgain) {
  const RequestId request = Reconnect(&pair_.prefill);
  std::weak_ptr<const std::vector<std::byte>> page;
  {
    const SharedBytes bytes = RandomBytes(100, 1);
    page = bytes;
    ASSERT_TRUE(
        pair_.prefill.PushPage({at_prefill_, request.id}, 0, 0, pair_.transfer.Address(0, 0), bytes, pair_.now).ok());
  }
  pair_.prefill.RemovePeer(at_prefill_, IoError("connection reset"), pair_.now);
  EXPECT_TRUE(page.expired());
  EXPECT_EQ(pair_.prefill.OpenRequests(), 0u);
  NodeConfig config = TestConfig(NodeRole::kDecode);
  config.epoch += 1;
  TransferNode decode(config);
  const PeerId at_decode = decode.AddPeer(pair_.now);
  at_prefill_ = pair_.prefill.AddPeer(pair_.now);
  for (int i = 0; i < 2; ++i) {
    decode.Feed(at_decode, pair_.Take(&pair_.prefill, at_prefill_), pair_.now);
    pair_.prefill.Feed(at_prefill_, pair_.Take(&decode, at_decode), pair_.now);
  }
  // The same id as the former life's first request: another request.
  const auto again = decode.Request(at_decode, TestRequest(), pair_.now);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, 1u);
  pair_.prefill.Feed(at_prefill_, pair_.Take(&decode, at_decode), pair_.now);
  EXPECT_EQ(pair_.prefill.OpenRequests(), 1u);
}

}  // namespace
}  // namespace lynx
