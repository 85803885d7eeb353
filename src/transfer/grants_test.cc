#include "transfer/grants.h"

#include <gtest/gtest.h>

#include <vector>

namespace lynx {
namespace {

class Grants : public ::testing::Test {
 protected:
  explicit Grants(std::uint64_t window = 1000) : window_(Config(window)) {}
  static NodeConfig Config(std::uint64_t window) {
    NodeConfig config;
    config.window_bytes = window;
    return config;
  }
  IncomingStream* Add(PeerId peer, int stream_class, std::uint64_t arrival, std::uint64_t available) {
    auto stream = std::make_unique<IncomingStream>();
    stream->request = {peer, arrival};
    stream->stream = stream_class;
    stream->priority = {stream_class, kNoDeadline, arrival, stream_class, 0};
    stream->available = available;
    streams_.push_back(std::move(stream));
    window_.Want(streams_.back().get());
    return streams_.back().get();
  }
  void Pump() {
    window_.Pump(now_, [](IncomingStream*) {});
  }
  void Receive(IncomingStream* stream, std::uint64_t bytes) {
    stream->received_bytes += bytes;
    window_.OnReceived(*stream, bytes);
    window_.OnProgress(stream->request.peer, bytes, now_);
    Pump();
  }

  TimeNs now_ = kSecondNs;
  GrantWindow window_;
  std::vector<std::unique_ptr<IncomingStream>> streams_;
};

TEST_F(Grants, NeverMoreThanIsAvailableOrFits) {
  IncomingStream* small = Add(1, 0, 1, 300);
  IncomingStream* large = Add(2, 0, 2, 5000);
  Pump();
  EXPECT_EQ(small->granted, 300u);
  EXPECT_EQ(large->granted, 700u);
  Receive(small, 300);
  EXPECT_EQ(large->granted, 1000u);
  Receive(large, 100);  // less than a quantum of 125: later
  EXPECT_EQ(large->granted, 1000u);
  Receive(large, 25);
  EXPECT_EQ(large->granted, 1125u);
}

TEST_F(Grants, LowerStreamsFirstAndNotBehindResidualsThatAreOut) {
  IncomingStream* residual = Add(1, 1, 1, 5000);
  Pump();
  EXPECT_EQ(residual->granted, 1000u);
  IncomingStream* anchor = Add(2, 0, 2, 5000);
  Pump();
  EXPECT_EQ(anchor->granted, 1000u);
  Receive(residual, 500);
  EXPECT_EQ(residual->granted, 1000u);
  Receive(anchor, 500);
  EXPECT_EQ(anchor->granted, 1500u);
  EXPECT_EQ(residual->granted, 1000u);
}

TEST_F(Grants, WhatAnEndedRequestHeldIsFree) {
  IncomingStream* gone = Add(1, 0, 1, 5000);
  IncomingStream* next = Add(1, 0, 2, 5000);
  Pump();
  EXPECT_EQ(next->granted, 0u);
  window_.Forget(gone);
  Pump();
  EXPECT_EQ(next->granted, 1000u);
}

TEST_F(Grants, APeerThatDeliversNothingDoesNotHoldTheWindow) {
  IncomingStream* stuck = Add(1, 0, 1, 5000);
  IncomingStream* other = Add(2, 0, 2, 5000);
  Pump();
  EXPECT_EQ(other->granted, 0u);
  ASSERT_EQ(window_.NextTimeout(), now_ + kStallNs);
  now_ += kStallNs;
  Pump();
  EXPECT_EQ(stuck->granted, 1000u);
  EXPECT_EQ(other->granted, 1000u);
  // It delivers again and counts again.
  Receive(stuck, 500);
  EXPECT_EQ(stuck->granted, 1000u);
}

class MeasuredGrants : public Grants {
 protected:
  MeasuredGrants() : Grants(0) {}
  // `rate` bytes per millisecond for `duration`.
  void Flow(std::uint64_t rate, TimeNs duration) {
    for (const TimeNs end = now_ + duration; now_ < end; now_ += kMillisecondNs) window_.OnProgress(1, rate, now_);
  }
};

TEST_F(MeasuredGrants, WindowFollowsThePath) {
  EXPECT_EQ(window_.window_bytes(), 256u << 10);
  window_.OnRoundTrip(1, 10 * kMillisecondNs, false);
  Flow(125'000, kSecondNs);  // 1 Gbit/s
  EXPECT_NEAR(double(window_.window_bytes()), 1.25 * 1.25e6 + 131072, 1e5);
  Flow(12'500, 10 * kSecondNs);
  EXPECT_NEAR(double(window_.window_bytes()), 1.25 * 1.25e5 + 131072, 1e5);
}

TEST_F(MeasuredGrants, PausesAreNotSlowness) {
  window_.OnRoundTrip(1, 10 * kMillisecondNs, false);
  Flow(125'000, kSecondNs);
  const auto before = window_.window_bytes();
  now_ += 60 * kSecondNs;
  Flow(125'000, 100 * kMillisecondNs);
  EXPECT_NEAR(double(window_.window_bytes()), double(before), 0.01 * double(before));
}

TEST(FrameSize, IsHalfAMillisecondWithinBounds) {
  EXPECT_EQ(FrameBytes(0, 1 << 20), 65536u);
  EXPECT_EQ(FrameBytes(0.0125, 1 << 20), 65536u);
  EXPECT_EQ(FrameBytes(1.25, 1 << 20), 625000u);
  EXPECT_EQ(FrameBytes(12.5, 1 << 20), 1u << 20);
  EXPECT_EQ(FrameBytes(12.5, 8192), 8192u);
}

}  // namespace
}  // namespace lynx
