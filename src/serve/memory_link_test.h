// For tests: a prefill and a decode node in memory, each with one request, joined by a link that moves when told.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lynx/transfer.h"
#include "net/socket.h"
#include "serve/generation.h"
#include "serve/toy_cache_test.h"

namespace lynx {

// What comes is encoded by ThreeStreamCodec, in one part per head.
class MemoryLink {
 public:
  MemoryLink(EncodedCache encoded, int tokens, Token token0)
      : encoded_(std::move(encoded)), tokens_(tokens), token0_(token0) {
    at_prefill_ = prefill_.AddPeer(MonotonicNow());
    at_decode_ = decode_.AddPeer(MonotonicNow());
    for (int i = 0; i < 4; ++i) Exchange(SIZE_MAX);
    while (prefill_.Poll() || decode_.Poll()) continue;
  }

  void Request(const TransferRequest& request) {
    const auto id = decode_.Request(at_decode_, request, MonotonicNow());
    ASSERT_TRUE(id.ok()) << id.status().ToString();
  }
  // At most about `budget` bytes towards the decode node, and what follows from them.
  void Move(std::size_t budget, Generation* generation, const Engine& engine) {
    Exchange(budget);
    while (auto event = prefill_.Poll()) {
      if (const auto* arrived = std::get_if<RequestArrived>(&*event)) Answer(arrived->request);
    }
    while (auto event = decode_.Poll()) generation->OnEvent(decode_, std::move(*event), MonotonicNow(), engine);
  }

 private:
  static NodeConfig Config(NodeRole role) {
    NodeConfig config;
    config.role = role;
    config.epoch = role == NodeRole::kPrefill ? 1 : 2;
    config.layout = {{"model", "toy"}};
    config.codecs = {"three"};
    return config;
  }

  void Exchange(std::size_t budget) {
    std::vector<std::byte> to_prefill, to_decode;
    decode_.Output(at_decode_, SIZE_MAX, MonotonicNow(), &to_prefill);
    prefill_.Feed(at_prefill_, to_prefill, MonotonicNow());
    prefill_.Output(at_prefill_, budget, MonotonicNow(), &to_decode);
    decode_.Feed(at_decode_, to_decode, MonotonicNow());
  }
  // One part per head.
  void Answer(RequestId id) {
    TransferOffer offer;
    offer.stream_count = 3;
    offer.part_count = 2;
    offer.token_count = std::uint32_t(tokens_);
    offer.max_bytes.assign(3, 0);
    for (const auto& [address, streams] : encoded_) {
      for (int stream = 0; stream < 3; ++stream) offer.max_bytes[stream] += streams[stream]->size();
    }
    const TimeNs now = MonotonicNow();
    EXPECT_TRUE(prefill_.Offer(id, offer, now).ok());
    EXPECT_TRUE(prefill_.SendPrefillDone(id, {.token0 = token0_}, now).ok());
    for (const auto& [address, streams] : encoded_) {
      for (int stream = 0; stream < 3; ++stream) {
        EXPECT_TRUE(prefill_.PushPage(id, address.first_head, stream, address, streams[stream], now).ok());
      }
    }
    for (int part = 0; part < 2; ++part) {
      for (int stream = 0; stream < 3; ++stream) EXPECT_TRUE(prefill_.EndStream(id, part, stream, now).ok());
    }
  }

  const EncodedCache encoded_;
  const int tokens_;
  const Token token0_;
  TransferNode prefill_{Config(NodeRole::kPrefill)};
  TransferNode decode_{Config(NodeRole::kDecode)};
  PeerId at_prefill_ = 0, at_decode_ = 0;
};

}  // namespace lynx
