// Frames that no honest peer sends. The connection is closed, its requests end once, and others do not notice.

#include <gtest/gtest.h>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

// A node under test and a peer whose frames the test writes itself.
class Hostile : public ::testing::Test {
 protected:
  explicit Hostile(NodeConfig config = TestConfig(NodeRole::kDecode)) : config_(std::move(config)), node_(config_) {
    peer_role_ = config_.role == NodeRole::kDecode ? NodeRole::kPrefill : NodeRole::kDecode;
    peer_ = node_.AddPeer(now_);
  }
  void SendHello(std::uint8_t wire_version_min = 1, std::uint8_t wire_version_max = 1) {
    const NodeConfig config = TestConfig(peer_role_);
    Hello hello;
    hello.wire_version_min = wire_version_min;
    hello.wire_version_max = wire_version_max;
    hello.role = config.role;
    hello.epoch = config.epoch;
    hello.layout = config.layout;
    hello.codecs = config.codecs;
    Send(FrameType::kHello, hello);
  }
  // The node has asked, was offered two streams of one part, and has accepted.
  void Accepted() {
    SendHello();
    id_ = *node_.Request(peer_, TestRequest(), now_);
    TransferOffer offer;
    offer.stream_count = 2;
    offer.token_count = 100;
    offer.max_bytes = {1000, 1000};
    Send(FrameType::kOffer, offer);
    ASSERT_TRUE(node_.AcceptOffer(id_, now_).ok());
    Send(FrameType::kAvailable, CumulativeBytes{1000});
    Send(FrameType::kPrefillDone, PrefillDone{});
  }
  FrameHeader Header(FrameType type) const {
    FrameHeader header;
    header.type = type;
    header.request = id_.id;
    header.epoch_tag = EpochTag(TestConfig(peer_role_).epoch);
    return header;
  }
  void SendBytes(const FrameHeader& header, std::span<const std::byte> payload) {
    std::vector<std::byte> frame;
    AppendFrame(header, payload, &frame);
    node_.Feed(peer_, frame, now_);
  }
  template <typename Payload>
  void Send(const FrameHeader& header, const Payload& value) {
    std::vector<std::byte> payload;
    Encode(value, &payload);
    SendBytes(header, payload);
  }
  template <typename Payload>
  void Send(FrameType type, const Payload& value) {
    Send(Header(type), value);
  }
  void SendPage(PageFragment fragment, std::size_t size, int stream = 0) {
    std::vector<std::byte> payload;
    Encode(fragment, &payload);
    payload.resize(payload.size() + size, std::byte{7});
    FrameHeader header = Header(FrameType::kPage);
    header.stream = std::uint8_t(stream);
    SendBytes(header, payload);
  }
  void SendDamaged(std::size_t size, int stream = 0) {
    FrameHeader header = Header(FrameType::kPage);
    header.stream = std::uint8_t(stream);
    std::vector<std::byte> frame;
    AppendFrame(header, std::vector<std::byte>(kPageHeaderBytes + size), &frame);
    frame.back() ^= std::byte{1};
    node_.Feed(peer_, frame, now_);
  }
  PageFragment Page(int first_token, std::uint32_t total = 100, std::uint32_t offset = 0) const {
    return {{0, KvKind::kKey, 0, 1, first_token, 10}, total, offset};
  }
  // What the peer was told, after which the connection wants to close; empty while it is up.
  std::string Refusal() {
    std::string down;
    while (auto event = node_.Poll()) {
      if (const auto* e = std::get_if<PeerDown>(&*event)) down = e->status.message();
      if (std::holds_alternative<RequestFinished>(*event)) ++finished_;
      if (std::holds_alternative<PageArrived>(*event)) ++pages_;
      if (std::holds_alternative<StreamCompleted>(*event)) ++completed_;
    }
    if (down.empty()) return "";
    std::vector<std::byte> out;
    EXPECT_FALSE(node_.WantsClose(peer_));
    node_.Output(peer_, 1 << 20, now_, &out);
    EXPECT_TRUE(node_.WantsClose(peer_));
    EXPECT_EQ(node_.OpenRequests(), 0u);
    return down;
  }

  TimeNs now_ = kSecondNs;
  NodeConfig config_;
  TransferNode node_;
  NodeRole peer_role_ = NodeRole::kPrefill;
  PeerId peer_ = 0;
  RequestId id_;
  int finished_ = 0, pages_ = 0, completed_ = 0;
};

TEST_F(Hostile, HonestFramesPass) {
  Accepted();
  SendPage(Page(0, 100), 60);
  SendPage(Page(0, 100, 60), 40);
  SendPage(Page(10, 900), 900);
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(pages_, 2);
}

TEST_F(Hostile, FrameBeforeHello) {
  Send(FrameType::kPing, Ping{});
  EXPECT_EQ(Refusal(), "frame comes before HELLO");
}

TEST_F(Hostile, SecondHello) {
  SendHello();
  SendHello();
  EXPECT_EQ(Refusal(), "HELLO comes twice");
}

TEST_F(Hostile, NewerPeerThatSpeaksThisVersionToo) {
  SendHello(1, 9);
  EXPECT_EQ(Refusal(), "");
}

TEST_F(Hostile, NewerPeerThatDoesNot) {
  SendHello(2, 9);
  EXPECT_EQ(Refusal(), "wire version differs: here 1 to 1, there 2 to 9");
}

TEST_F(Hostile, OtherEpoch) {
  Accepted();
  FrameHeader header = Header(FrameType::kPing);
  header.epoch_tag += 1;
  Send(header, Ping{});
  EXPECT_EQ(Refusal(), "frame is of another epoch: the peer has restarted");
  EXPECT_EQ(finished_, 1);
}

TEST_F(Hostile, UnknownRequest) {
  Accepted();
  id_.id += 1;
  SendPage(Page(0), 100);
  EXPECT_EQ(Refusal(), "frame names an unknown request");
}

TEST_F(Hostile, FrameForTheOtherRole) {
  Accepted();
  Send(FrameType::kGrant, StreamGrant{5});
  EXPECT_EQ(Refusal(), "frame type 9 is not for a decode node");
}

TEST_F(Hostile, UnknownStreamAndPart) {
  Accepted();
  SendPage(Page(0), 100, 2);
  EXPECT_EQ(Refusal(), "frame names a stream or part that was not offered");
}

TEST_F(Hostile, SecondOffer) {
  Accepted();
  TransferOffer offer;
  offer.max_bytes = {1};
  Send(FrameType::kOffer, offer);
  EXPECT_EQ(Refusal(), "OFFER comes twice");
}

TEST_F(Hostile, AvailableBeyondTheOffer) {
  Accepted();
  Send(FrameType::kAvailable, CumulativeBytes{1001});
  EXPECT_EQ(Refusal(), "AVAILABLE shrinks or exceeds what was offered");
}

TEST_F(Hostile, AvailableShrinks) {
  Accepted();
  Send(FrameType::kAvailable, CumulativeBytes{999});
  EXPECT_EQ(Refusal(), "AVAILABLE shrinks or exceeds what was offered");
}

TEST_F(Hostile, PageNotGranted) {
  Accepted();
  SendPage(Page(0), 100, 1);  // stream 1 was never available
  EXPECT_EQ(Refusal(), "PAGE: bytes were not granted");
}

TEST_F(Hostile, PageLongerThanTheOffer) {
  Accepted();
  SendPage(Page(0, 1001), 10);
  EXPECT_EQ(Refusal(), "PAGE: page streams are longer than the offer's max_bytes");
}

TEST_F(Hostile, PageLongerThanTheLimitIsNotAllocated) {
  Accepted();
  SendPage(Page(0, UINT32_MAX), 10);
  EXPECT_EQ(Refusal(), "PAGE: longer than max_page_stream_bytes");
}

TEST_F(Hostile, PageOutsideTheOfferedTokens) {
  Accepted();
  SendPage(Page(91), 100);
  EXPECT_EQ(Refusal(), "PAGE: token range lies outside the offer");
}

TEST_F(Hostile, SamePageTwice) {
  Accepted();
  SendPage(Page(0), 100);
  SendPage(Page(0), 100);
  EXPECT_EQ(Refusal(), "PAGE: tokens of this page have arrived before");
  EXPECT_EQ(pages_, 1);
}

TEST_F(Hostile, OverlappingPages) {
  Accepted();
  SendPage(Page(20), 100);
  SendPage(Page(40), 100);
  SendPage(Page(31), 100);  // up to 40
  EXPECT_EQ(Refusal(), "PAGE: tokens of this page have arrived before");
}

TEST_F(Hostile, FragmentsOutOfOrder) {
  Accepted();
  SendPage(Page(0, 100), 60);
  SendPage(Page(0, 100, 61), 39);
  EXPECT_EQ(Refusal(), "PAGE: fragment does not continue its page stream");
}

TEST_F(Hostile, FragmentTwice) {
  Accepted();
  SendPage(Page(0, 100), 60);
  SendPage(Page(0, 100), 60);
  EXPECT_EQ(Refusal(), "PAGE: fragment does not continue its page stream");
}

TEST_F(Hostile, FragmentsOfTwoPagesMixed) {
  Accepted();
  SendPage(Page(0, 100), 60);
  SendPage(Page(10, 100), 60);
  EXPECT_EQ(Refusal(), "PAGE: fragment does not continue its page stream");
}

TEST_F(Hostile, FragmentChangesTheLength) {
  Accepted();
  SendPage(Page(0, 100), 60);
  SendPage(Page(0, 101, 60), 40);
  EXPECT_EQ(Refusal(), "PAGE: fragment does not continue its page stream");
}

TEST_F(Hostile, PageBeginsInTheMiddle) {
  Accepted();
  SendPage(Page(0, 100, 10), 60);
  EXPECT_EQ(Refusal(), "PAGE: fragment does not continue a page stream");
}

TEST_F(Hostile, DamagedPageNotGranted) {
  Accepted();
  SendDamaged(100, 1);
  EXPECT_EQ(Refusal(), "PAGE: bytes were not granted");
}

TEST_F(Hostile, DamagedPageWithoutBytes) {
  Accepted();
  SendDamaged(0);
  EXPECT_EQ(Refusal(), "PAGE payload is too short");
}

// Fault 7: a peer whose pages are always damaged cannot go on for ever: all was sent again twice.
TEST_F(Hostile, PagesThatAreAlwaysDamaged) {
  Accepted();
  int sent = 0;
  for (std::uint64_t available = 2000; node_.OpenRequests() > 0; available += 1000) {
    for (int i = 0; i < 10 && node_.OpenRequests() > 0; ++i, ++sent) SendDamaged(100);
    if (node_.OpenRequests() > 0) Send(FrameType::kAvailable, CumulativeBytes{available});
  }
  EXPECT_EQ(sent, 21);  // 1,000 bytes twice, and one more
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(finished_, 1);
}

// Nor one that never ends a damaged page.
TEST_F(Hostile, ADamagedPageWithoutEnd) {
  Accepted();
  SendDamaged(100);
  int sent = 0;
  for (std::uint64_t available = 1100; node_.OpenRequests() > 0; available += 100, ++sent) {
    Send(FrameType::kAvailable, CumulativeBytes{available});
    SendPage(Page(0, 1000, 100), 100);
  }
  EXPECT_EQ(sent, 20);
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(finished_, 1);
  EXPECT_EQ(pages_, 0);
}

TEST_F(Hostile, EndThatKnowsMoreNaksThanThereWere) {
  Accepted();
  Send(FrameType::kEnd, StreamEnd{0, 0, 0, 1});
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(finished_, 1);
  EXPECT_EQ(completed_, 0);
}

TEST_F(Hostile, EndTwice) {
  Accepted();
  Send(FrameType::kEnd, StreamEnd{});
  Send(FrameType::kEnd, StreamEnd{});
  EXPECT_EQ(Refusal(), "END comes twice");
  EXPECT_EQ(completed_, 1);
}

TEST_F(Hostile, PageAfterEnd) {
  Accepted();
  Send(FrameType::kEnd, StreamEnd{});
  SendPage(Page(0), 100);
  EXPECT_EQ(Refusal(), "PAGE: stream was ended");
}

// Wrong totals are the request's loss only.
TEST_F(Hostile, EndThatDoesNotFit) {
  Accepted();
  SendPage(Page(0), 100);
  Send(FrameType::kEnd, StreamEnd{1, 100, 12345});
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(finished_, 1);
  EXPECT_EQ(completed_, 0);
  SendPage(Page(10), 100);  // late: ignored
  EXPECT_EQ(Refusal(), "");
}

TEST_F(Hostile, HigherStreamIsHeldBackUntilTheLowerIsComplete) {
  Accepted();
  FrameHeader header = Header(FrameType::kEnd);
  header.stream = 1;
  Send(header, StreamEnd{});
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(completed_, 0);
  Send(FrameType::kEnd, StreamEnd{});
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(completed_, 2);
  EXPECT_EQ(finished_, 1);
}

TEST_F(Hostile, AbortWithoutACode) {
  Accepted();
  const std::byte payload[5] = {};
  SendBytes(Header(FrameType::kAbort), payload);
  EXPECT_EQ(Refusal(), "ERROR or ABORT: code is out of range");
}

TEST_F(Hostile, PingFloodIsAnsweredOnce) {
  SendHello();
  std::vector<std::byte> out;
  node_.Output(peer_, 1 << 20, now_, &out);
  out.clear();
  for (int i = 0; i < 100000; ++i) Send(FrameType::kPing, Ping{i});
  node_.Output(peer_, 1 << 20, now_, &out);
  EXPECT_LT(out.size(), 100u);
}

class HostileToPrefill : public Hostile {
 protected:
  explicit HostileToPrefill(NodeConfig config = TestConfig(NodeRole::kPrefill)) : Hostile(std::move(config)) {}
  // Requests that the node has told the peer to be over.
  std::vector<std::uint64_t> Aborted() {
    std::vector<std::byte> out;
    node_.Output(peer_, 1 << 20, now_, &out);
    std::vector<std::uint64_t> ids;
    for (const auto& frame : SplitFrames(out)) {
      if (TypeOf(frame) == FrameType::kAbort) ids.push_back(LoadLittle<std::uint64_t>(frame.data() + 8));
    }
    return ids;
  }
  // Request 1 is offered and has one page of 100 bytes, which was sent.
  void Sent() {
    SendHello();
    Ask(1);
    TransferOffer offer;
    offer.token_count = 10;
    offer.max_bytes = {300};
    ASSERT_TRUE(node_.Offer({peer_, 1}, offer, now_).ok());
    ASSERT_TRUE(node_.PushPage({peer_, 1}, 0, 0, {0, KvKind::kKey, 0, 1, 0, 10}, RandomBytes(100, 1), now_).ok());
    Send(FrameType::kGrant, StreamGrant{100});
    EXPECT_EQ(Pages(), 1);
  }
  int Pages() {
    std::vector<std::byte> out;
    node_.Output(peer_, 1 << 20, now_, &out);
    int pages = 0;
    for (const auto& frame : SplitFrames(out)) pages += TypeOf(frame) == FrameType::kPage;
    return pages;
  }
  void Ask(std::uint64_t id) {
    id_.id = id;
    Send(FrameType::kRequest, TestRequest());
  }
};

TEST_F(HostileToPrefill, RequestIdsMustGrow) {
  SendHello();
  Ask(5);
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(node_.OpenRequests(), 1u);
  Ask(5);
  EXPECT_EQ(Refusal(), "REQUEST: ids must grow");
  EXPECT_EQ(finished_, 1);
}

TEST_F(HostileToPrefill, TooManyRequests) {
  SendHello();
  for (std::uint64_t id = 1; id <= config_.limits.max_requests; ++id) Ask(id);
  EXPECT_EQ(Refusal(), "");
  Ask(config_.limits.max_requests + 1);
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(node_.OpenRequests(), config_.limits.max_requests);
  EXPECT_EQ(Aborted(), std::vector<std::uint64_t>{config_.limits.max_requests + 1});
}

// P4: over all peers too, in requests and in what their prompts take.
class SmallPrefill : public HostileToPrefill {
 protected:
  static NodeConfig Small() {
    NodeConfig config = TestConfig(NodeRole::kPrefill);
    config.max_open_requests = 4;
    config.max_prompt_tokens = 9;  // three prompts
    return config;
  }
  SmallPrefill() : HostileToPrefill(Small()) {}
};

TEST_F(SmallPrefill, PromptsOfAllRequestsAreBounded) {
  SendHello();
  for (std::uint64_t id = 1; id <= 6; ++id) Ask(id);
  EXPECT_EQ(node_.OpenRequests(), 3u);
  EXPECT_EQ(Aborted(), (std::vector<std::uint64_t>{4, 5, 6}));
  node_.Abort({peer_, 2}, EngineError("stop"), now_);
  Ask(7);  // there is room again
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(node_.OpenRequests(), 3u);
}

TEST_F(SmallPrefill, OpenRequestsOfAllPeersAreBounded) {
  const PeerId first = peer_;
  for (int i = 0; i < 6; ++i) {
    if (i > 0) peer_ = node_.AddPeer(now_);
    SendHello();
    id_.id = 1;
    TransferRequest request = TestRequest();
    request.tokens = {1};
    Send(FrameType::kRequest, request);
  }
  EXPECT_EQ(node_.OpenRequests(), 4u);
  peer_ = first;
  EXPECT_EQ(Refusal(), "");
}

TEST_F(HostileToPrefill, GrantBeforeOfferOrBeyondIt) {
  SendHello();
  Ask(1);
  Send(FrameType::kGrant, StreamGrant{1});
  EXPECT_EQ(Refusal(), "GRANT: request was not offered yet");
}

TEST_F(HostileToPrefill, GrantBeyondTheOffer) {
  SendHello();
  Ask(1);
  TransferOffer offer;
  offer.max_bytes = {10};
  ASSERT_TRUE(node_.Offer({peer_, 1}, offer, now_).ok());
  Send(FrameType::kGrant, StreamGrant{11});
  EXPECT_EQ(Refusal(), "GRANT shrinks or exceeds what was offered");
}

TEST_F(HostileToPrefill, GrantAcknowledgesMoreThanWasSent) {
  Sent();
  Send(FrameType::kGrant, StreamGrant{200, 101});
  EXPECT_EQ(Refusal(), "GRANT acknowledges less than before or more than was sent");
}

TEST_F(HostileToPrefill, NakOfWhatWasNotSent) {
  Sent();
  Send(FrameType::kNak, CumulativeBytes{100});
  EXPECT_EQ(Refusal(), "NAK names bytes that are not on their way");
}

TEST_F(HostileToPrefill, NakOfWhatWasAcknowledged) {
  Sent();
  Send(FrameType::kGrant, StreamGrant{100, 100});
  Send(FrameType::kNak, CumulativeBytes{0});
  EXPECT_EQ(Refusal(), "NAK names bytes that are not on their way");
}

TEST_F(HostileToPrefill, NakOfAnUnknownStream) {
  Sent();
  FrameHeader header = Header(FrameType::kNak);
  header.stream = 1;
  Send(header, CumulativeBytes{0});
  EXPECT_EQ(Refusal(), "NAK: request has no such stream or part");
}

// Fault 7: each copy once, however often it is asked for; the third refusal ends the request, not the connection.
TEST_F(HostileToPrefill, NaksAreAnsweredTwice) {
  Sent();
  for (std::uint64_t copy = 0; copy < 2; ++copy) {
    for (std::uint64_t i = 0; i < 10; ++i) Send(FrameType::kNak, CumulativeBytes{100 * copy + i});
    EXPECT_EQ(Pages(), 0);  // a page that is sent again needs a grant again
    Send(FrameType::kGrant, StreamGrant{100 * (copy + 2)});
    EXPECT_EQ(Pages(), 1);
  }
  EXPECT_EQ(node_.OpenRequests(), 1u);
  Send(FrameType::kNak, CumulativeBytes{200});
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(node_.OpenRequests(), 0u);
  EXPECT_EQ(Aborted(), std::vector<std::uint64_t>{1});
}

// B8, P4: a decode node that grants or accepts nothing, and is alive, does not hold pages for ever; one that takes
// something now and then does.
TEST_F(HostileToPrefill, APeerThatTakesNothingLosesItsRequests) {
  Sent();
  const TimeNs limit = 6 * config_.stall_ns;
  const auto wait = [&](TimeNs duration) {
    for (const TimeNs until = now_ + duration; now_ < until; now_ += 100 * kMillisecondNs) {
      Send(FrameType::kPing, Ping{now_});
      node_.Tick(now_);
    }
  };
  wait(limit - kSecondNs);
  Send(FrameType::kGrant, StreamGrant{200});
  wait(limit - kSecondNs);
  EXPECT_EQ(node_.OpenRequests(), 1u);
  wait(2 * kSecondNs);
  EXPECT_EQ(Refusal(), "");
  EXPECT_EQ(finished_, 1);
  EXPECT_EQ(Aborted(), std::vector<std::uint64_t>{1});
}

TEST_F(HostileToPrefill, DoneTooEarly) {
  SendHello();
  Ask(1);
  SendBytes(Header(FrameType::kDone), {});
  EXPECT_EQ(Refusal(), "DONE comes before all streams were sent");
}

}  // namespace
}  // namespace lynx
