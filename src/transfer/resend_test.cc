// Pages that arrive damaged (B6, fault 7): asked for again at most twice, never used before they are whole; and the
// bytes that a sender keeps until it knows that they have arrived (P4).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

// What a network does to the payload of a frame.
void FlipBit(std::span<std::byte> payload) { payload[payload.size() / 2] ^= std::byte{4}; }
void FlipAddress(std::span<std::byte> payload) { payload[4] ^= std::byte{1}; }
// TCP's checksum does not see this one.
void SwapWords(std::span<std::byte> payload) {
  const std::span<std::byte> words = payload.subspan(kPageHeaderBytes, 4);
  std::rotate(words.begin(), words.begin() + 2, words.end());
}
using Damage = void (*)(std::span<std::byte> payload);

class Resend : public ::testing::Test {
 protected:
  // `damages` says which PAGE frames are damaged, counted from 0.
  std::unique_ptr<Loopback> RunDamaged(const std::function<bool(int)>& damages, Damage damage = FlipBit,
                                       const TestTransfer& transfer = {},
                                       NodeConfig config = TestConfig(NodeRole::kDecode)) {
    pages_sent_ = 0;
    auto pair = std::make_unique<Loopback>(TestConfig(NodeRole::kPrefill), std::move(config));
    pair->transfer = transfer;
    pair->on_way = [this, damages, damage](Loopback::Direction, std::vector<std::byte> bytes) {
      Loopback::Pieces frames = SplitFrames(bytes);
      for (auto& frame : frames) {
        if (TypeOf(frame) != FrameType::kPage || !damages(pages_sent_++)) continue;
        damage(std::span(frame).subspan(kFrameHeaderBytes));
      }
      return frames;
    };
    pair->Run();
    pair->Request();
    pair->Run();
    return pair;
  }
  static void ExpectWell(const Loopback& pair) {
    EXPECT_EQ(pair.decode_events.back(), "finished 1 ok");
    EXPECT_EQ(pair.prefill_events.back(), "finished 1 ok");
    const TestTransfer& t = pair.transfer;
    EXPECT_EQ(pair.pages.size(), std::size_t(t.streams * t.parts * t.pages));
    for (const PageArrived& page : pair.pages) {
      EXPECT_EQ(*page.bytes, *t.Bytes(page.part, page.stream, page.address.layer));
    }
  }

  int pages_sent_ = 0;
};

TEST_F(Resend, AnyPageOnce) {
  for (const Damage damage : {FlipBit, FlipAddress, SwapWords}) {
    for (int at = 0; at < 18; ++at) {
      const auto pair = RunDamaged([at](int page) { return page == at; }, damage);
      ExpectWell(*pair);
      EXPECT_EQ(pages_sent_, 19);
      EXPECT_EQ(pair->decode.Stats(pair->at_decode).naks, 1u);
      EXPECT_EQ(pair->prefill.Stats(pair->at_prefill).naks, 1u);
      EXPECT_THAT(pair->decode_events, ::testing::Contains(HasSubstr("complete 0 606/")));
    }
  }
}

TEST_F(Resend, AllPagesAtOnce) {
  ExpectWell(*RunDamaged([](int page) { return page < 18; }));
  EXPECT_EQ(pages_sent_, 36);
}

TEST_F(Resend, TwiceButNotThrice) {
  const TestTransfer one{.streams = 1, .parts = 1, .pages = 1};
  ExpectWell(*RunDamaged([](int page) { return page < 2; }, FlipBit, one));
  EXPECT_EQ(pages_sent_, 3);
  const auto pair = RunDamaged([](int page) { return page < 3; }, FlipBit, one);
  EXPECT_EQ(pages_sent_, 3);
  EXPECT_THAT(pair->decode_events.back(), HasSubstr("finished 1 corrupt"));
  EXPECT_THAT(pair->prefill_events.back(), HasSubstr("finished 1 corrupt"));
  EXPECT_EQ(pair->pages.size(), 0u);
  // It was that request's trouble only.
  pair->Request();
  pair->Run();
  EXPECT_EQ(pair->decode_events.back(), "finished 2 ok");
  EXPECT_EQ(pair->prefill_events.back(), "finished 2 ok");
}

// The sender gives up: one page of many is damaged every time.
TEST_F(Resend, OneOfManyPagesThrice) {
  const TestTransfer many{.streams = 1, .parts = 1, .pages = 4};
  const auto pair = RunDamaged([](int page) { return page == 0 || page == 4 || page == 5; }, FlipBit, many);
  EXPECT_EQ(pages_sent_, 6);
  EXPECT_THAT(pair->decode_events.back(), HasSubstr("finished 1 corrupt"));
  EXPECT_THAT(pair->prefill_events.back(), HasSubstr("finished 1 corrupt"));
}

// Pages of several frames: any one, any two and all frames of the first copies.
TEST_F(Resend, FragmentsOfLongPages) {
  NodeConfig config = TestConfig(NodeRole::kDecode);
  config.limits.max_frame_bytes = kMinFrameBytes;
  const TestTransfer transfer{.streams = 2, .parts = 1, .pages = 2, .page_bytes = 10000};
  for (const std::uint64_t window : {0, 1000, 5000}) {
    config.window_bytes = window;
    RunDamaged([](int) { return false; }, FlipBit, transfer, config);
    const int frames = pages_sent_;
    ASSERT_GE(frames, 12);
    for (int a = 0; a < frames; ++a) {
      for (int b = a; b < frames; ++b) {
        ExpectWell(*RunDamaged([=](int page) { return page == a || page == b; }, FlipBit, transfer, config));
      }
      ExpectWell(*RunDamaged([=](int page) { return page <= a; }, FlipBit, transfer, config));
      if (HasFailure()) return;
    }
  }
}

// Whoever grants everything at once grants what is sent again as well.
TEST_F(Resend, WithoutPull) {
  NodeConfig config = TestConfig(NodeRole::kDecode);
  config.pull = false;
  for (int at = 0; at < 18; ++at) {
    ExpectWell(*RunDamaged([at](int page) { return page == at; }, FlipBit, {}, config));
  }
}

// P4: a page is kept until it has arrived and not longer, whether its request goes on or not.
TEST_F(Resend, PagesAreFreedAsTheyArrive) {
  Loopback pair;
  pair.asleep = true;
  pair.Run();
  pair.Request();
  pair.Run();
  const RequestId id{pair.at_prefill, 1};
  const TestTransfer& t = pair.transfer;
  ASSERT_TRUE(pair.prefill.Offer(id, t.Offer(), pair.now).ok());
  std::vector<std::weak_ptr<const std::vector<std::byte>>> pages;
  const auto push = [&](int page, int part) {
    SharedBytes bytes = t.Bytes(part, 0, page);
    pages.push_back(bytes);
    ASSERT_TRUE(pair.prefill.PushPage(id, part, 0, t.Address(part, page), std::move(bytes), pair.now).ok());
  };
  const auto held = [&] {
    return std::count_if(pages.begin(), pages.end(), [](auto& page) { return !page.expired(); });
  };
  push(0, 0);
  push(1, 0);
  push(0, 1);
  EXPECT_EQ(held(), 3);
  pair.Run();
  EXPECT_EQ(pair.pages.size(), 3u);
  EXPECT_EQ(held(), 0);
  // Sent, and not known to have arrived.
  push(2, 0);
  pair.on_way = [](Loopback::Direction direction, std::vector<std::byte> bytes) {
    return direction == Loopback::kToDecode ? Loopback::Pieces{std::move(bytes)} : Loopback::Pieces{};
  };
  pair.Run();
  EXPECT_EQ(held(), 1);
  pair.Disconnect();
  EXPECT_EQ(held(), 0);
}

}  // namespace
}  // namespace lynx
