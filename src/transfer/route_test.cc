// The grant window on a path that changes, in virtual time: a link that is full for a minute must not be taken for a
// longer one, a longer one must be believed.

#include <gtest/gtest.h>

#include "transfer/loopback_test.h"
#include "transfer/simulated_link_test.h"

namespace lynx {
namespace {

constexpr double kBytesPerNs = 50e6 / 8 / 1e9;  // 50 Mbit/s
constexpr int kPages = 4000;
constexpr std::size_t kPageBytes = 128 << 10;

// One endless transfer that keeps the link full.
class Route : public ::testing::Test {
 protected:
  Route()
      : link_({.bytes_per_ns = kBytesPerNs, .delay_ns = kMillisecondNs, .network_bytes = 4 << 20}),
        prefill_(TestConfig(NodeRole::kPrefill)),
        decode_(TestConfig(NodeRole::kDecode)) {
    peer_ = link_.Connect(&prefill_, &decode_).second;
    Run(100 * kMillisecondNs);
    EXPECT_TRUE(decode_.Request(peer_, TestRequest(), link_.now()).ok());
  }
  void Run(TimeNs duration) {
    link_.Run(link_.now() + duration, [this] {
      while (auto event = prefill_.Poll()) {
        if (const auto* arrived = std::get_if<RequestArrived>(&*event)) Push(arrived->request);
      }
      while (auto event = decode_.Poll()) {
        ASSERT_FALSE(std::holds_alternative<RequestFinished>(*event) || std::holds_alternative<PeerDown>(*event));
        if (const auto* offer = std::get_if<OfferArrived>(&*event)) {
          ASSERT_TRUE(decode_.AcceptOffer(offer->request, link_.now()).ok());
        }
      }
    });
  }
  void Push(RequestId id) {
    TransferOffer offer;
    offer.token_count = kPages;
    offer.max_bytes = {kPages * kPageBytes};
    ASSERT_TRUE(prefill_.Offer(id, offer, link_.now()).ok());
    const SharedBytes page = RandomBytes(kPageBytes, 1);
    for (int i = 0; i < kPages; ++i) {
      ASSERT_TRUE(prefill_.PushPage(id, 0, 0, {0, KvKind::kKey, 0, 1, i, 1}, page, link_.now()).ok());
    }
  }
  // Of the link's rate, over `duration`.
  double Goodput(TimeNs duration) {
    const std::uint64_t before = decode_.Stats(peer_).bytes_received;
    Run(duration);
    return double(decode_.Stats(peer_).bytes_received - before) / (kBytesPerNs * double(duration));
  }
  // What the window should be for a round trip.
  static double WindowFor(TimeNs round_trip_ns) { return 1.25 * kBytesPerNs * double(round_trip_ns) + (128 << 10); }
  double Window() const { return double(decode_.Stats(peer_).window_bytes); }

  SimulatedLink link_;
  TransferNode prefill_;
  TransferNode decode_;
  PeerId peer_ = 0;
};

TEST_F(Route, AFullLinkIsNotALongerOne) {
  Run(2 * kSecondNs);
  for (int i = 0; i < 30; ++i) {
    EXPECT_GE(Goodput(kSecondNs), 0.97) << i;
    EXPECT_LE(Window(), 1.2 * WindowFor(2 * kMillisecondNs)) << i;
    // A quarter of the window is on the way while the round trip is measured: 1.25 / 4 of itself and 32 KiB.
    EXPECT_LE(double(decode_.Stats(peer_).min_rtt_ns), 2 * kMillisecondNs + 48 * 1024 / kBytesPerNs) << i;
  }
}

TEST_F(Route, ALongerRouteIsBelieved) {
  Run(5 * kSecondNs);
  link_.Lengthen(50 * kMillisecondNs);
  EXPECT_LE(Goodput(2 * kSecondNs), 0.5);  // the window is that of the short one
  Run(11 * kSecondNs);
  EXPECT_GE(decode_.Stats(peer_).min_rtt_ns, 100 * kMillisecondNs);
  EXPECT_GE(Goodput(20 * kSecondNs), 0.95);
  EXPECT_GE(Window(), 0.9 * WindowFor(100 * kMillisecondNs));
  EXPECT_LE(Window(), 1.4 * WindowFor(100 * kMillisecondNs));
}

}  // namespace
}  // namespace lynx
