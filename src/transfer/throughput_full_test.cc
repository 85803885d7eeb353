// What one core moves through Output and Feed of two nodes, beside memcpy of the same bytes.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <ctime>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

// CPU time: other processes do not count.
double Seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

TEST(Throughput, OutputAndFeedOnOneCore) {
  NodeConfig decode_config = TestConfig(NodeRole::kDecode);
  decode_config.window_bytes = 16 << 20;
  Loopback pair(TestConfig(NodeRole::kPrefill), decode_config);
  pair.asleep = true;
  pair.Run();
  pair.Request();
  pair.Run();
  constexpr int kPages = 4096;
  const SharedBytes page = RandomBytes(256 << 10, 1);
  const RequestId id{pair.at_prefill, 1};
  TransferOffer offer;
  offer.token_count = kPages;
  offer.max_bytes = {std::uint64_t{kPages} * page->size()};
  ASSERT_TRUE(pair.prefill.Offer(id, offer, pair.now).ok());
  ASSERT_TRUE(pair.prefill.SendPrefillDone(id, {}, pair.now).ok());
  for (int i = 0; i < kPages; ++i) {
    ASSERT_TRUE(pair.prefill.PushPage(id, 0, 0, {0, KvKind::kKey, 0, 1, i, 1}, page, pair.now).ok());
  }
  ASSERT_TRUE(pair.prefill.EndStream(id, 0, 0, pair.now).ok());

  const double begin = Seconds();
  std::vector<std::byte> bytes;
  bool finished = false;
  while (!finished) {
    pair.now += 100'000;
    bytes.clear();
    pair.prefill.Output(pair.at_prefill, 1 << 20, pair.now, &bytes);
    // Sockets give what they have, not frames.
    for (std::size_t at = 0; at < bytes.size(); at += 256 << 10) {
      pair.decode.Feed(pair.at_decode,
                       std::span(bytes).subspan(at, std::min<std::size_t>(256 << 10, bytes.size() - at)), pair.now);
    }
    while (auto event = pair.decode.Poll()) {
      if (std::holds_alternative<OfferArrived>(*event)) {
        ASSERT_TRUE(pair.decode.AcceptOffer({pair.at_decode, 1}, pair.now).ok());
      }
      finished |= std::holds_alternative<RequestFinished>(*event);
    }
    bytes.clear();
    pair.decode.Output(pair.at_decode, 1 << 20, pair.now, &bytes);
    pair.prefill.Feed(pair.at_prefill, bytes, pair.now);
  }
  const double transfer_s = Seconds() - begin;

  std::vector<std::byte> copy(page->size());
  const double copy_begin = Seconds();
  for (int i = 0; i < kPages; ++i) {
    std::memcpy(copy.data(), page->data(), page->size());
    asm volatile("" : : "r"(copy.data()) : "memory");
  }
  const double copy_s = Seconds() - copy_begin;
  const double bytes_total = double(kPages) * double(page->size());
  std::printf("transfer %.2f GB/s, memcpy in cache %.2f GB/s\n", bytes_total / transfer_s / 1e9,
              bytes_total / copy_s / 1e9);
  EXPECT_GE(bytes_total / transfer_s, 125e6);  // 1 Gbit/s, on whatever machine
}

}  // namespace
}  // namespace lynx
