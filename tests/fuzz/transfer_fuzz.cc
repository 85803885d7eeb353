// A node whose peer sends whatever it likes after a proper HELLO, in between what the node's own side does: no crash,
// each request ends exactly once, nothing stays open, and pages that arrive lie inside the offer.
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "lynx/transfer.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

constexpr std::uint64_t kPeerEpoch = 77;

NodeConfig ConfigOf(NodeRole role) {
  NodeConfig config;
  config.name = "node";
  config.role = role;
  config.epoch = 1;
  config.layout = {{"model", "toy"}};
  config.codecs = {"raw"};
  config.limits = {
      .max_frame_bytes = kMinFrameBytes, .max_requests = 3, .max_prompt_tokens = 64, .max_page_stream_bytes = 1 << 14};
  return config;
}

class Session {
 public:
  Session(ByteReader input, NodeRole role) : input_(input), role_(role), node_(ConfigOf(role)) {}

  void Run() {
    const NodeConfig config = ConfigOf(role_);
    peer_ = node_.AddPeer(now_);
    Hello hello{.role = role_ == NodeRole::kDecode ? NodeRole::kPrefill : NodeRole::kDecode,
                .epoch = kPeerEpoch,
                .name = "peer",
                .layout = config.layout,
                .codecs = config.codecs,
                .limits = config.limits};
    std::vector<std::byte> payload;
    Encode(hello, &payload);
    Feed(FrameType::kHello, 0, 0, 0, payload);
    while (input_.ok() && input_.left() > 0) {
      Act(input_.Get<std::uint8_t>());
      TakeEvents();
      std::vector<std::byte> out;
      node_.Output(peer_, 1 << 16, now_, &out);
    }
    node_.RemovePeer(peer_, IoError("gone"), now_);
    TakeEvents();
    LYNX_CHECK(node_.OpenRequests() == 0);
    for (const auto& [id, ended] : ended_) LYNX_CHECK(ended);
  }

 private:
  std::uint32_t Small() { return input_.Get<std::uint8_t>() % 4; }

  void Feed(FrameType type, std::uint8_t stream, std::uint64_t request, std::uint16_t part,
            std::span<const std::byte> payload) {
    FrameHeader header;
    header.type = type;
    header.stream = stream;
    header.request = request;
    header.part = part;
    header.epoch_tag = EpochTag(kPeerEpoch);
    std::vector<std::byte> frame;
    AppendFrame(header, payload, &frame);
    if (std::exchange(damaged_, false)) frame.back() ^= std::byte{1};  // of the payload, if there is one
    node_.Feed(peer_, frame, now_);
  }

  TransferOffer TakeOffer() {
    TransferOffer offer;
    offer.stream_count = 1 + Small();
    offer.part_count = 1 + Small() / 2;
    offer.first_token = Small();
    offer.token_count = 1 + input_.Get<std::uint8_t>();
    offer.elements = 1 + Small();
    for (std::uint32_t k = 0; k < offer.stream_count; ++k) offer.max_bytes.push_back(input_.Get<std::uint16_t>());
    return offer;
  }
  PageAddress TakeAddress() {
    return {int(Small()),     KvKind(Small() % 2), int(Small()),
            1 + int(Small()), int(Small()) * 16,   1 + int(Small()) * 15};
  }

  // A payload of this type with small numbers in it.
  std::vector<std::byte> TakePayload(FrameType type) {
    std::vector<std::byte> payload;
    switch (type) {
      case FrameType::kRequest:
        Encode(TransferRequest{.tokens = std::vector<Token>(1 + Small(), 5), .sampling = {}, .codec = "raw"}, &payload);
        break;
      case FrameType::kOffer:
        Encode(TakeOffer(), &payload);
        break;
      case FrameType::kPrefillDone:
        Encode(PrefillDone{.token0 = Token(Small())}, &payload);
        break;
      case FrameType::kAvailable:
      case FrameType::kNak:
        Encode(CumulativeBytes{input_.Get<std::uint16_t>()}, &payload);
        break;
      case FrameType::kGrant:
        Encode(StreamGrant{input_.Get<std::uint16_t>(), input_.Get<std::uint8_t>()}, &payload);
        break;
      case FrameType::kEnd:
        Encode(StreamEnd{Small(), input_.Get<std::uint8_t>(), input_.Get<std::uint32_t>(), Small()}, &payload);
        break;
      case FrameType::kPage: {
        const std::uint32_t total = 1 + input_.Get<std::uint8_t>(), offset = input_.Get<std::uint8_t>() % total;
        Encode(PageFragment{TakeAddress(), total, Small() != 0 ? 0 : offset}, &payload);
        payload.resize(payload.size() + 1 + input_.Get<std::uint8_t>() % total);
        break;
      }
      case FrameType::kPing:
        Encode(Ping{now_}, &payload);
        break;
      case FrameType::kPong:
        Encode(Pong{now_, Small()}, &payload);
        break;
      case FrameType::kError:
      case FrameType::kAbort:
        Encode(IoError("peer says so"), &payload);
        break;
      default:
        break;
    }
    return payload;
  }

  void Act(std::uint8_t what) {
    const RequestId request{peer_, 1 + Small()};
    if (what < 200) {  // a frame of the peer
      const auto type = FrameType(what % 16);
      const auto taken = input_.Get<std::uint8_t>();
      const auto stream = std::uint8_t(taken % 4);
      damaged_ = taken >= 240;
      const auto part = std::uint16_t(Small() / 2);
      if (what >= 16 * 11) {
        const auto bytes = input_.GetBytes(std::min<std::size_t>(input_.Get<std::uint8_t>(), input_.left()));
        return Feed(type, stream, request.id, part, bytes);
      }
      return Feed(type, stream, request.id, part, TakePayload(type));
    }
    if (what < 210) {
      const auto bytes = input_.GetBytes(std::min<std::size_t>(input_.Get<std::uint8_t>(), input_.left()));
      return node_.Feed(peer_, bytes, now_);
    }
    if (what < 220) {
      now_ += TimeNs(1) << (input_.Get<std::uint8_t>() % 32);
      return node_.Tick(now_);
    }
    if (what < 225) return node_.Abort(request, IoError("enough"), now_);
    role_ == NodeRole::kDecode ? ActAsDecode(what, request) : ActAsPrefill(what, request);
  }

  void ActAsDecode(std::uint8_t what, const RequestId& request) {
    if (what < 240) {
      const auto id = node_.Request(
          peer_, {.tokens = {1, 2, 3}, .sampling = {}, .codec = "raw", .deadline_ms = Small() * 100}, now_);
      if (id.ok()) LYNX_CHECK(ended_.emplace(*id, false).second);
    } else {
      (void)node_.AcceptOffer(request, now_);
    }
  }

  void ActAsPrefill(std::uint8_t what, const RequestId& request) {
    const int part = int(Small() / 2), stream = int(Small());
    if (what < 232) {
      (void)node_.Offer(request, TakeOffer(), now_);
    } else if (what < 236) {
      (void)node_.SendPrefillDone(request, {}, now_);
    } else if (what < 250) {
      const auto bytes = std::make_shared<std::vector<std::byte>>(1 + input_.Get<std::uint8_t>());
      (void)node_.PushPage(request, part, stream, TakeAddress(), bytes, now_);
    } else {
      (void)node_.EndStream(request, part, stream, now_);
    }
  }

  void TakeEvents() {
    while (const auto event = node_.Poll()) {
      if (const auto* arrived = std::get_if<RequestArrived>(&*event)) {
        LYNX_CHECK(role_ == NodeRole::kPrefill && ended_.emplace(arrived->request, false).second);
      } else if (const auto* offer = std::get_if<OfferArrived>(&*event)) {
        LYNX_CHECK(CheckOffer(offer->offer).ok());
        offers_[offer->request] = offer->offer;
      } else if (const auto* page = std::get_if<PageArrived>(&*event)) {
        const TransferOffer& of = offers_.at(page->request);
        const auto first = std::int64_t(page->address.first_token);
        LYNX_CHECK(first >= of.first_token &&
                   first + page->address.token_count <= std::int64_t(of.first_token) + of.token_count);
        LYNX_CHECK(page->bytes->size() <= of.max_bytes.at(std::size_t(page->stream)));
      } else if (const auto* finished = std::get_if<RequestFinished>(&*event)) {
        bool& ended = ended_.at(finished->request);
        LYNX_CHECK(!ended);
        ended = true;
      }
    }
  }

  ByteReader input_;
  NodeRole role_;
  TransferNode node_;
  bool damaged_ = false;  // the next frame
  PeerId peer_ = 0;
  TimeNs now_ = kSecondNs;
  std::map<RequestId, bool> ended_;
  std::map<RequestId, TransferOffer> offers_;
};

}  // namespace
}  // namespace lynx

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  lynx::Session(lynx::ByteReader(bytes), lynx::NodeRole(data[0] % 2)).Run();
  return 0;
}
