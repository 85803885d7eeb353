// For tests: a prefill and a decode node whose bytes a test moves by hand, and a small transfer to move.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "lynx/transfer.h"

namespace lynx {

inline NodeConfig TestConfig(NodeRole role) {
  NodeConfig config;
  config.name = role == NodeRole::kPrefill ? "prefill" : "decode";
  config.role = role;
  config.epoch = role == NodeRole::kPrefill ? 0x1111222233334444 : 0x5555666677778888;
  config.layout = {{"model", "toy"}, {"revision", "1"}, {"layers", "4"}};
  config.codecs = {"nested", "raw"};
  return config;
}

inline SharedBytes RandomBytes(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  auto bytes = std::make_shared<std::vector<std::byte>>(size);
  for (std::byte& byte : *bytes) byte = std::byte(random.Next());
  return bytes;
}

// What a test sends: pages of every part and stream, in this order.
struct TestTransfer {
  int streams = 3;
  int parts = 2;
  int pages = 3;  // of each part of each stream
  std::size_t page_bytes = 100;

  PageAddress Address(int part, int page) const { return {page, KvKind::kKey, 2 * part, 2, 0, 32}; }
  SharedBytes Bytes(int part, int stream, int page) const {
    return RandomBytes(page_bytes + std::size_t(page), std::uint64_t(1 + part + 100 * stream + 10000 * page));
  }
  TransferOffer Offer() const {
    TransferOffer offer;
    offer.stream_count = std::uint32_t(streams);
    offer.part_count = std::uint32_t(parts);
    offer.token_count = 32;
    offer.elements = 1000;
    offer.max_bytes.assign(std::size_t(streams), std::uint64_t(parts * pages) * (page_bytes + std::size_t(pages)));
    return offer;
  }
  void PushAll(TransferNode* node, RequestId request, TimeNs now) const {
    for (int page = 0; page < pages; ++page) {
      for (int part = 0; part < parts; ++part) {
        for (int stream = 0; stream < streams; ++stream) {
          // Fails when the request has ended meanwhile; what matters then is seen in the events.
          (void)node->PushPage(request, part, stream, Address(part, page), Bytes(part, stream, page), now);
        }
      }
    }
    for (int part = 0; part < parts; ++part) {
      for (int stream = 0; stream < streams; ++stream) (void)node->EndStream(request, part, stream, now);
    }
  }
};

inline TransferRequest TestRequest() {
  TransferRequest request;
  request.tokens = {1, 2, 3};
  request.codec = "nested:anchor=4";
  return request;
}

inline std::string Describe(const TransferEvent& event) {
  struct Visitor {
    std::string operator()(const PeerUp& e) const { return "up " + e.name; }
    std::string operator()(const PeerDown& e) const { return "down " + e.status.ToString(); }
    std::string operator()(const RequestArrived& e) const { return "request " + std::to_string(e.request.id); }
    std::string operator()(const OfferArrived& e) const { return "offer " + std::to_string(e.offer.stream_count); }
    std::string operator()(const PrefillDoneArrived& e) const { return "prefilled " + std::to_string(e.done.token0); }
    std::string operator()(const PageArrived& e) const {
      return "page " + std::to_string(e.part) + "/" + std::to_string(e.stream) + "/" + std::to_string(e.address.layer);
    }
    std::string operator()(const StreamCompleted& e) const {
      return "complete " + std::to_string(e.stream) + " " + std::to_string(e.bytes) + "/" +
             std::to_string(e.wire_bytes);
    }
    std::string operator()(const RequestFinished& e) const {
      return "finished " + std::to_string(e.request.id) + " " + e.status.ToString();
    }
  };
  return std::visit(Visitor{}, event);
}

// Whole frames, one by one.
inline std::vector<std::vector<std::byte>> SplitFrames(std::span<const std::byte> bytes) {
  std::vector<std::vector<std::byte>> frames;
  while (!bytes.empty()) {
    const std::size_t size = kFrameHeaderBytes + LoadLittle<std::uint32_t>(bytes.data() + 24);
    frames.emplace_back(bytes.begin(), bytes.begin() + std::ptrdiff_t(size));
    bytes = bytes.subspan(size);
  }
  return frames;
}
inline FrameType TypeOf(const std::vector<std::byte>& frame) { return FrameType(frame[5]); }
inline int StreamOf(const std::vector<std::byte>& frame) { return int(frame[7]); }

class Loopback {
 public:
  enum Direction { kToPrefill = 0, kToDecode = 1 };
  explicit Loopback(NodeConfig prefill_config = TestConfig(NodeRole::kPrefill),
                    NodeConfig decode_config = TestConfig(NodeRole::kDecode))
      : prefill(std::move(prefill_config)), decode(std::move(decode_config)) {
    at_prefill = prefill.AddPeer(now);
    at_decode = decode.AddPeer(now);
  }

  std::vector<std::byte> Take(TransferNode* node, PeerId peer, std::size_t budget = 1 << 20) {
    std::vector<std::byte> bytes;
    node->Output(peer, budget, now, &bytes);
    return bytes;
  }
  // Answers what came in as the sessions would, and keeps what a test wants to see.
  void Serve() {
    while (auto event = prefill.Poll()) {
      prefill_events.push_back(Describe(*event));
      if (const auto* arrived = std::get_if<RequestArrived>(&*event); arrived != nullptr && !asleep) {
        (void)prefill.Offer(arrived->request, transfer.Offer(), now);
        (void)prefill.SendPrefillDone(arrived->request, {.token0 = 7}, now);
        transfer.PushAll(&prefill, arrived->request, now);
      }
    }
    while (auto event = decode.Poll()) {
      decode_events.push_back(Describe(*event));
      if (const auto* offer = std::get_if<OfferArrived>(&*event)) {
        (void)decode.AcceptOffer(offer->request, now);  // likewise
      }
      if (auto* page = std::get_if<PageArrived>(&*event)) pages.push_back(std::move(*page));
    }
  }
  // Moves everything until nothing moves; then closes the connection if a node wants that.
  void Run() {
    while (true) {
      Serve();
      const auto to_prefill = Take(&decode, at_decode);
      const auto to_decode = Take(&prefill, at_prefill);
      if (to_prefill.empty() && to_decode.empty()) break;
      now += 10'000;
      Deliver(kToPrefill, to_prefill);
      Deliver(kToDecode, to_decode);
    }
    if (prefill.WantsClose(at_prefill) || decode.WantsClose(at_decode)) Disconnect();
  }
  void Disconnect() {
    prefill.RemovePeer(at_prefill, IoError("connection lost"), now);
    decode.RemovePeer(at_decode, IoError("connection lost"), now);
    Serve();
  }
  // Nodes alone with their clocks.
  void Wait(TimeNs duration) {
    const TimeNs until = now + duration;
    for (now += kMillisecondNs; now < until; now += 10 * kMillisecondNs) {
      prefill.Tick(now);
      decode.Tick(now);
      Run();
    }
  }
  void Deliver(Direction direction, std::vector<std::byte> bytes) {
    if (bytes.empty()) return;
    const std::size_t size = bytes.size();
    Pieces pieces;
    if (on_way) {
      pieces = on_way(direction, std::move(bytes));
    } else {
      pieces.push_back(std::move(bytes));
    }
    carried[direction] += size;
    for (const auto& piece : pieces) {
      if (direction == kToPrefill) {
        prefill.Feed(at_prefill, piece, now);
      } else {
        decode.Feed(at_decode, piece, now);
      }
      Serve();
      if (after_piece) after_piece();
    }
  }
  RequestId Request(std::uint32_t deadline_ms = 0) {
    TransferRequest body = TestRequest();
    body.deadline_ms = deadline_ms;
    auto request = decode.Request(at_decode, body, now);
    EXPECT_TRUE(request.ok()) << request.status().ToString();
    return request.ok() ? *request : RequestId{};
  }

  // What a test does to bytes on their way: the pieces that arrive.
  using Pieces = std::vector<std::vector<std::byte>>;
  std::function<Pieces(Direction, std::vector<std::byte>)> on_way;
  std::function<void()> after_piece;
  std::size_t carried[2] = {0, 0};  // bytes so far

  TimeNs now = kSecondNs;
  bool asleep = false;  // the prefill node's session does not answer
  TestTransfer transfer;
  TransferNode prefill;
  TransferNode decode;
  PeerId at_prefill = 0;  // the decode node, as the prefill node knows it
  PeerId at_decode = 0;
  std::vector<std::string> prefill_events;
  std::vector<std::string> decode_events;
  std::vector<PageArrived> pages;
};

inline int CountStarting(const std::vector<std::string>& events, const std::string& with) {
  int count = 0;
  for (const std::string& event : events) count += event.rfind(with, 0) == 0;
  return count;
}

}  // namespace lynx
