#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TransferNode, WholeTransfer) {
  Loopback pair;
  pair.Run();
  pair.Request();
  EXPECT_EQ(pair.decode.OpenRequests(), 1u);
  pair.Run();
  EXPECT_THAT(pair.prefill_events, ElementsAre("up decode", "request 1", "finished 1 ok"));
  ASSERT_EQ(pair.pages.size(), 18u);
  for (const PageArrived& page : pair.pages) {
    EXPECT_EQ(*page.bytes, *pair.transfer.Bytes(page.part, page.stream, page.address.layer));
    EXPECT_EQ(page.address, pair.transfer.Address(page.part, page.address.layer));
  }
  // 6 pages of 100 to 102 bytes a stream, one frame each (68 bytes of headers).
  EXPECT_THAT(pair.decode_events, Contains("complete 0 606/1014"));
  EXPECT_EQ(CountStarting(pair.decode_events, "complete"), 3);
  EXPECT_EQ(pair.decode_events.back(), "finished 1 ok");
  EXPECT_EQ(pair.decode.OpenRequests(), 0u);
  EXPECT_EQ(pair.prefill.OpenRequests(), 0u);
  EXPECT_GT(pair.decode.Stats(pair.at_decode).min_rtt_ns, 0);
}

TEST(TransferNode, StreamsComeInOrderAndAfterPrefillDone) {
  Loopback pair;
  pair.Run();
  pair.Request();
  pair.Run();
  for (std::size_t i = 1; i < pair.pages.size(); ++i) EXPECT_LE(pair.pages[i - 1].stream, pair.pages[i].stream);
  const auto at = [&](const std::string& event) {
    return std::find(pair.decode_events.begin(), pair.decode_events.end(), event) - pair.decode_events.begin();
  };
  EXPECT_LT(at("prefilled 7"), at("complete 0 606/1014"));
}

TEST(TransferNode, SmallWindowsAndLongPagesAreFragmented) {
  for (const std::uint64_t window : {1, 7, 100, 5000}) {
    NodeConfig decode = TestConfig(NodeRole::kDecode);
    decode.window_bytes = window;
    decode.limits.max_frame_bytes = kMinFrameBytes;
    Loopback pair(TestConfig(NodeRole::kPrefill), decode);
    pair.transfer = {
        .streams = 2, .parts = 1, .pages = 2, .page_bytes = window < 10 ? std::size_t{50} : std::size_t{20000}};
    pair.Run();
    pair.Request();
    pair.Run();
    EXPECT_EQ(pair.decode_events.back(), "finished 1 ok") << window;
    for (const PageArrived& page : pair.pages) {
      EXPECT_EQ(*page.bytes, *pair.transfer.Bytes(page.part, page.stream, page.address.layer)) << window;
    }
  }
}

TEST(TransferNode, WithoutPullEverythingIsGrantedAtOnce) {
  NodeConfig config = TestConfig(NodeRole::kDecode);
  config.pull = false;
  config.window_bytes = 1;
  Loopback pair(TestConfig(NodeRole::kPrefill), config);
  pair.Run();
  pair.Request();
  pair.Run();
  EXPECT_EQ(pair.decode_events.back(), "finished 1 ok");
}

// --- handshake ---

Status Refusal(const NodeConfig& prefill, const NodeConfig& decode) {
  Loopback pair(prefill, decode);
  Status why;
  for (int i = 0; i < 4; ++i) {
    const auto to_prefill = pair.Take(&pair.decode, pair.at_decode);
    const auto to_decode = pair.Take(&pair.prefill, pair.at_prefill);
    pair.prefill.Feed(pair.at_prefill, to_prefill, pair.now);
    pair.decode.Feed(pair.at_decode, to_decode, pair.now);
  }
  while (auto event = pair.decode.Poll()) {
    if (const auto* down = std::get_if<PeerDown>(&*event)) why = down->status;
  }
  EXPECT_EQ(why.ok(), !pair.decode.WantsClose(pair.at_decode));
  EXPECT_EQ(why.ok(), !pair.prefill.WantsClose(pair.at_prefill));
  return why;
}

TEST(Handshake, EveryLayoutDifferenceIsNamed) {
  const NodeConfig prefill = TestConfig(NodeRole::kPrefill);
  const NodeConfig decode = TestConfig(NodeRole::kDecode);
  EXPECT_TRUE(Refusal(prefill, decode).ok());
  for (std::size_t i = 0; i < decode.layout.size(); ++i) {
    NodeConfig changed = decode;
    changed.layout[i].value += "x";
    const Status differs = Refusal(prefill, changed);
    EXPECT_EQ(differs.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(differs.message(), HasSubstr(decode.layout[i].name + " differs: here "));
    changed.layout.erase(changed.layout.begin() + std::ptrdiff_t(i));
    EXPECT_THAT(Refusal(prefill, changed).message(), HasSubstr(decode.layout[i].name + " differs: here missing"));
  }
  NodeConfig more = decode;
  more.layout.push_back({"page", "256"});
  EXPECT_THAT(Refusal(prefill, more).message(), HasSubstr("page differs: here 256, there missing"));
}

TEST(Handshake, RolesAndLimits) {
  EXPECT_THAT(Refusal(TestConfig(NodeRole::kDecode), TestConfig(NodeRole::kDecode)).message(), HasSubstr("role"));
  NodeConfig small = TestConfig(NodeRole::kDecode);
  small.limits.max_frame_bytes = kMinFrameBytes - 1;
  EXPECT_THAT(Refusal(TestConfig(NodeRole::kPrefill), small).message(), HasSubstr("max_frame_bytes"));
}

TEST(Handshake, TimesOut) {
  TransferNode node(TestConfig(NodeRole::kDecode));
  const PeerId peer = node.AddPeer(0);
  EXPECT_EQ(node.NextTimeout(), 5 * kSecondNs);
  node.Tick(5 * kSecondNs - 1);
  EXPECT_FALSE(node.Poll().has_value());
  node.Tick(5 * kSecondNs);
  EXPECT_THAT(Describe(*node.Poll()), HasSubstr("down io"));
  EXPECT_TRUE(node.WantsClose(peer));
}

TEST(Handshake, NothingWithoutIt) {
  TransferNode node(TestConfig(NodeRole::kDecode));
  const PeerId peer = node.AddPeer(0);
  EXPECT_EQ(node.Request(peer, TestRequest(), 0).status().code(), ErrorCode::kInvalid);
  EXPECT_EQ(node.Request(99, TestRequest(), 0).status().code(), ErrorCode::kInvalid);
  std::vector<std::byte> out;
  node.Output(peer, 1 << 20, 0, &out);
  EXPECT_GT(out.size(), kFrameHeaderBytes);
  out.clear();
  node.Tick(kSecondNs);
  EXPECT_EQ(node.Output(peer, 1 << 20, kSecondNs, &out), 0u);
}

// --- requests ---

TEST(Request, IsCheckedHereFirst) {
  NodeConfig prefill = TestConfig(NodeRole::kPrefill);
  prefill.limits.max_prompt_tokens = 3;
  prefill.limits.max_requests = 2;
  Loopback pair(prefill);
  pair.Run();
  TransferRequest request = TestRequest();
  request.codec = "zfp";
  EXPECT_EQ(pair.decode.Request(pair.at_decode, request, pair.now).status().code(), ErrorCode::kInvalid);
  request = TestRequest();
  request.tokens.push_back(4);
  EXPECT_EQ(pair.decode.Request(pair.at_decode, request, pair.now).status().code(), ErrorCode::kUnsupported);
  pair.Request();
  pair.Request();
  EXPECT_EQ(pair.decode.Request(pair.at_decode, TestRequest(), pair.now).status().code(), ErrorCode::kLimit);
  EXPECT_EQ(pair.prefill.Request(pair.at_prefill, TestRequest(), pair.now).status().code(), ErrorCode::kInvalid);
  pair.Run();
  EXPECT_EQ(CountStarting(pair.decode_events, "finished"), 2);
}

TEST(Request, BusyAtOfferReachesThePrefillNode) {
  Loopback pair;
  pair.Run();
  const RequestId request = pair.Request();
  // Refuse instead of accepting.
  const auto to_prefill = pair.Take(&pair.decode, pair.at_decode);
  pair.prefill.Feed(pair.at_prefill, to_prefill, pair.now);
  pair.Serve();
  pair.decode.Feed(pair.at_decode, pair.Take(&pair.prefill, pair.at_prefill), pair.now);
  pair.decode.Abort(request, LimitExceeded("busy: retry later"), pair.now);
  while (pair.decode.Poll()) {
  }
  pair.Run();
  EXPECT_EQ(pair.prefill_events.back(), "finished 1 limit: busy: retry later");
  EXPECT_EQ(pair.pages.size(), 0u);
  EXPECT_EQ(pair.prefill.OpenRequests() + pair.decode.OpenRequests(), 0u);
  EXPECT_EQ(pair.prefill.PushPage({pair.at_prefill, 1}, 0, 0, {}, RandomBytes(1, 1), pair.now).code(),
            ErrorCode::kInvalid);
}

TEST(Request, DeadlineEndsBothSides) {
  Loopback pair;
  pair.Run();
  TransferRequest request = TestRequest();
  request.deadline_ms = 300;
  ASSERT_TRUE(pair.decode.Request(pair.at_decode, request, pair.now).ok());
  pair.asleep = true;
  pair.prefill.Feed(pair.at_prefill, pair.Take(&pair.decode, pair.at_decode), pair.now);
  const TimeNs due = pair.now + 300 * kMillisecondNs;
  EXPECT_LE(*pair.decode.NextTimeout(), due);
  pair.decode.Tick(due - 1);
  EXPECT_EQ(pair.decode.OpenRequests(), 1u);
  pair.decode.Tick(due);
  pair.prefill.Tick(due);
  pair.Serve();
  EXPECT_THAT(pair.decode_events.back(), HasSubstr("finished 1 limit: deadline"));
  EXPECT_THAT(pair.prefill_events.back(), HasSubstr("finished 1 limit: deadline"));
  pair.Run();  // both ABORTs are late frames
  EXPECT_EQ(CountStarting(pair.decode_events, "down") + CountStarting(pair.prefill_events, "down"), 0);
}

TEST(Request, PrefillSideContracts) {
  Loopback pair;
  pair.Run();
  pair.Request();
  pair.prefill.Feed(pair.at_prefill, pair.Take(&pair.decode, pair.at_decode), pair.now);
  const RequestId id{pair.at_prefill, 1};
  TransferNode& node = pair.prefill;
  const PageAddress address{0, KvKind::kKey, 0, 1, 0, 32};
  const TimeNs now = pair.now;
  EXPECT_FALSE(node.PushPage(id, 0, 0, address, RandomBytes(1, 1), now).ok());  // not offered
  TransferOffer offer = pair.transfer.Offer();
  offer.max_bytes = {100, 100};
  EXPECT_FALSE(node.Offer(id, offer, now).ok());
  offer.stream_count = 2;
  EXPECT_TRUE(node.Offer(id, offer, now).ok());
  EXPECT_FALSE(node.Offer(id, offer, now).ok());
  EXPECT_FALSE(node.PushPage(id, 2, 0, address, RandomBytes(1, 1), now).ok());
  EXPECT_FALSE(node.PushPage(id, 0, -1, address, RandomBytes(1, 1), now).ok());
  EXPECT_FALSE(node.PushPage(id, 0, 0, address, nullptr, now).ok());
  EXPECT_FALSE(node.PushPage(id, 0, 0, address, RandomBytes(0, 1), now).ok());
  EXPECT_FALSE(node.PushPage(id, 0, 0, {}, RandomBytes(1, 1), now).ok());
  EXPECT_TRUE(node.PushPage(id, 0, 0, address, RandomBytes(60, 1), now).ok());
  EXPECT_FALSE(node.PushPage(id, 1, 0, address, RandomBytes(41, 1), now).ok());  // over all parts
  EXPECT_TRUE(node.EndStream(id, 0, 0, now).ok());
  EXPECT_FALSE(node.EndStream(id, 0, 0, now).ok());
  EXPECT_FALSE(node.PushPage(id, 0, 0, address, RandomBytes(1, 1), now).ok());
  EXPECT_TRUE(node.SendPrefillDone(id, {}, now).ok());
  EXPECT_FALSE(node.SendPrefillDone(id, {}, now).ok());
}

// --- heartbeats ---

TEST(Heartbeat, IdlePeersStayUpAndKnowEachOthersLoad) {
  Loopback pair;
  pair.Run();
  pair.Wait(10 * kSecondNs);
  EXPECT_EQ(CountStarting(pair.decode_events, "down") + CountStarting(pair.prefill_events, "down"), 0);
  const std::size_t idle_bytes = pair.decode.Stats(pair.at_decode).bytes_sent;
  EXPECT_LT(idle_bytes, 5000u);  // 20 PINGs and PONGs of about 50 bytes
  pair.asleep = true;
  pair.Request();
  pair.Wait(kSecondNs);
  EXPECT_EQ(pair.prefill.Stats(pair.at_prefill).peer_load, 1u);
}

TEST(Heartbeat, ATricklingPeerIsAlive) {
  Loopback pair;
  pair.Run();
  std::vector<std::byte> frame;
  FrameHeader header;
  header.type = FrameType::kPing;
  header.epoch_tag = EpochTag(TestConfig(NodeRole::kDecode).epoch);
  Ping ping;
  std::vector<std::byte> payload;
  Encode(ping, &payload);
  AppendFrame(header, payload, &frame);
  for (const std::byte byte : frame) {
    pair.now += kSecondNs;
    pair.prefill.Feed(pair.at_prefill, {&byte, 1}, pair.now);
    pair.prefill.Tick(pair.now);
  }
  pair.Serve();
  EXPECT_EQ(CountStarting(pair.prefill_events, "down"), 0);
}

// --- order ---

// The kinds of PAGE frames in `bytes`, as {request, stream}.
std::vector<std::pair<std::uint64_t, int>> PagesIn(std::span<const std::byte> bytes) {
  FrameReader reader({1 << 20, 1 << 10});
  std::vector<std::pair<std::uint64_t, int>> pages;
  while (true) {
    const auto frame = reader.Next(&bytes);
    if (!frame.ok() || !*frame) return pages;
    if ((*frame)->header.type != FrameType::kPage) continue;
    if (pages.empty() || pages.back() != std::pair((*frame)->header.request, int((*frame)->header.stream))) {
      pages.emplace_back((*frame)->header.request, (*frame)->header.stream);
    }
  }
}

TEST(Order, WhatNeedsNoAnchorFirstCompetesAsStreamOneAndDeadlinesBreakTies) {
  NodeConfig config = TestConfig(NodeRole::kDecode);
  config.pull = false;
  Loopback pair(TestConfig(NodeRole::kPrefill), config);
  pair.Run();
  std::vector<RequestId> requests;
  for (const std::uint32_t deadline_ms : {0, 0, 900, 500, 700}) {
    TransferRequest request = TestRequest();
    request.deadline_ms = deadline_ms;
    request.anchor_first = deadline_ms != 700;
    requests.push_back(*pair.decode.Request(pair.at_decode, request, pair.now));
  }
  // Request 1 has one stream, the others two.
  pair.prefill.Feed(pair.at_prefill, pair.Take(&pair.decode, pair.at_decode), pair.now);
  while (auto event = pair.prefill.Poll()) {
    const auto* arrived = std::get_if<RequestArrived>(&*event);
    if (arrived == nullptr) continue;
    pair.transfer = {.streams = arrived->request.id == 1 ? 1 : 2, .parts = 1, .pages = 1};
    ASSERT_TRUE(pair.prefill.Offer(arrived->request, pair.transfer.Offer(), pair.now).ok());
    pair.transfer.PushAll(&pair.prefill, arrived->request, pair.now);
  }
  pair.decode.Feed(pair.at_decode, pair.Take(&pair.prefill, pair.at_prefill), pair.now);
  pair.Serve();
  pair.prefill.Feed(pair.at_prefill, pair.Take(&pair.decode, pair.at_decode), pair.now);
  using P = std::pair<std::uint64_t, int>;
  EXPECT_THAT(PagesIn(pair.Take(&pair.prefill, pair.at_prefill)),
              ElementsAre(P{4, 0}, P{3, 0}, P{2, 0}, P{4, 1}, P{5, 0}, P{5, 1}, P{3, 1}, P{1, 0}, P{2, 1}));
}

// Two decode nodes at one prefill node; node 0 has a residual to get, node 1 an anchor.
class Outcast : public ::testing::Test {
 protected:
  Outcast() : prefill_(TestConfig(NodeRole::kPrefill)) {
    NodeConfig config = TestConfig(NodeRole::kDecode);
    config.pull = false;
    for (int i = 0; i < 2; ++i) {
      decodes_.push_back(std::make_unique<TransferNode>(config));
      at_prefill_.push_back(prefill_.AddPeer(now_));
      at_decode_.push_back(decodes_.back()->AddPeer(now_));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      Exchange(i);
      EXPECT_TRUE(decodes_[i]->Request(at_decode_[i], TestRequest(), now_).ok());
      Exchange(i);
      EXPECT_TRUE(prefill_.Offer({at_prefill_[i], 1}, transfer_.Offer(), now_).ok());
      Exchange(i);
      EXPECT_TRUE(decodes_[i]->AcceptOffer({at_decode_[i], 1}, now_).ok());
      Exchange(i);
      EXPECT_TRUE(
          prefill_
              .PushPage({at_prefill_[i], 1}, 0, i == 0 ? 1 : 0, transfer_.Address(0, 0), transfer_.Bytes(0, 0, 0), now_)
              .ok());
    }
  }
  void Exchange(std::size_t i) {
    std::vector<std::byte> bytes;
    prefill_.Output(at_prefill_[i], 1 << 21, now_, &bytes);
    decodes_[i]->Feed(at_decode_[i], bytes, now_);
    bytes.clear();
    decodes_[i]->Output(at_decode_[i], 1 << 21, now_, &bytes);
    prefill_.Feed(at_prefill_[i], bytes, now_);
  }
  std::size_t Pages(std::size_t i) {
    std::vector<std::byte> bytes;
    prefill_.Output(at_prefill_[i], 1 << 21, now_, &bytes);
    return PagesIn(bytes).size();
  }

  TimeNs now_ = kSecondNs;
  TestTransfer transfer_{.streams = 2, .parts = 1, .pages = 1, .page_bytes = 1 << 19};
  TransferNode prefill_;
  std::vector<std::unique_ptr<TransferNode>> decodes_;
  std::vector<PeerId> at_prefill_, at_decode_;
};

TEST_F(Outcast, ResidualWaitsForTheOtherPeersAnchor) {
  EXPECT_EQ(Pages(0), 0u);
  EXPECT_EQ(Pages(1), 1u);
  EXPECT_EQ(Pages(0), 1u);
}

TEST_F(Outcast, ButNotForAPeerThatTakesNothing) {
  prefill_.SetWritable(at_prefill_[1], false);
  const TimeNs begin = now_;
  now_ = begin + 199 * kMillisecondNs;
  EXPECT_EQ(Pages(0), 0u);
  EXPECT_LE(*prefill_.NextTimeout(), begin + 200 * kMillisecondNs);
  now_ = begin + 200 * kMillisecondNs;
  prefill_.Tick(now_);
  EXPECT_GT(*prefill_.NextTimeout(), now_);
  EXPECT_EQ(Pages(0), 1u);
}

// P6: a peer that takes its anchor, a frame of 64 KiB every 150 ms, holds others back for a moment only.
TEST_F(Outcast, NorForAPeerThatTakesLittle) {
  TimeNs waited = 0;
  for (std::size_t pages = 0; pages == 0 && waited < kSecondNs; waited += 10 * kMillisecondNs) {
    prefill_.SetWritable(at_prefill_[1], waited % (150 * kMillisecondNs) == 0);
    std::vector<std::byte> frame;
    if (waited % (150 * kMillisecondNs) == 0) prefill_.Output(at_prefill_[1], 1, now_, &frame);
    prefill_.SetWritable(at_prefill_[1], false);
    prefill_.Tick(now_);
    pages = Pages(0);
    now_ += 10 * kMillisecondNs;
  }
  EXPECT_NEAR(double(waited), 400e6, 20e6);  // 200 ms, and half of that for each further frame
}

}  // namespace
}  // namespace lynx
