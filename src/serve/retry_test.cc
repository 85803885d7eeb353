#include "serve/retry.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace lynx {
namespace {

constexpr TimeNs kBegin = -5 * kSecondNs;

TEST(Retry, BeginsAgainUntilTokenOneIsCommitted) {
  Retry retry(2, 0, kBegin);
  EXPECT_TRUE(retry.OnFailure(IoError("lost"), {}));
  EXPECT_EQ(retry.token0(), std::nullopt);
  const std::vector<Token> tokens{7, 8};
  EXPECT_FALSE(Retry(retry).OnFailure(IoError("lost"), tokens));
  EXPECT_TRUE(retry.OnFailure(Corrupt("damaged"), std::span(tokens).first(1)));
  EXPECT_EQ(retry.token0(), 7);
  EXPECT_EQ(retry.count(), 2);
  EXPECT_FALSE(retry.OnFailure(IoError("lost"), {})) << "twice is enough";
}

TEST(Retry, OnlyWhatMayPass) {
  for (const Status& why :
       {LimitExceeded("deadline"), Unsupported("codec"), Invalid("prompt"), EngineError("broken")}) {
    EXPECT_FALSE(Retry(2, 0, kBegin).OnFailure(why, {})) << why.ToString();
  }
}

// P3: the deadline is one for all tries.
TEST(Retry, TriesShareTheDeadline) {
  Retry retry(2, 3000, kBegin);
  EXPECT_EQ(retry.MillisecondsLeft(kBegin), 3000u);
  EXPECT_TRUE(retry.OnFailure(IoError("lost"), {}));
  EXPECT_EQ(retry.MillisecondsLeft(kBegin + 2 * kSecondNs), 1000u);
  EXPECT_FALSE(retry.Expired(kBegin + 2999 * kMillisecondNs));
  EXPECT_TRUE(retry.Expired(kBegin + 3 * kSecondNs));
  EXPECT_EQ(retry.MillisecondsLeft(kBegin + 4 * kSecondNs), 1u) << "0 would be none at all";
  EXPECT_EQ(Retry(2, 0, kBegin).MillisecondsLeft(kBegin), 0u);
  EXPECT_FALSE(Retry(2, 0, kBegin).Expired(kBegin + 1000 * kSecondNs));
}

TEST(Retry, WaitsForANodeWithPatience) {
  Retry retry(2, 0, kBegin);
  const Status nobody = IoError("no prefill node is up");
  EXPECT_TRUE(retry.OnNobody(nobody, kBegin).ok());
  EXPECT_TRUE(retry.OnNobody(nobody, kBegin + kPatienceNs).ok());
  EXPECT_EQ(retry.OnNobody(nobody, kBegin + kPatienceNs + 1).message(), nobody.message());
  retry.OnBegin();
  EXPECT_TRUE(retry.OnFailure(Corrupt("damaged"), {}));
  EXPECT_TRUE(retry.OnNobody(nobody, kBegin + 9 * kSecondNs).ok());
  EXPECT_EQ(retry.OnNobody(nobody, kBegin + 12 * kSecondNs).message(), "damaged");
}

// B15, fault 25: doubled, jittered, capped.
TEST(Retry, PausesGrowToACap) {
  Random random(1);
  TimeNs shortest = kSecondNs, longest = 0;
  for (int i = 0; i < 1000; ++i) {
    const TimeNs pause = ReconnectPause(0, &random);
    shortest = std::min(shortest, pause);
    longest = std::max(longest, pause);
    for (const int failures : {6, 20, 1 << 30}) {
      EXPECT_LE(ReconnectPause(failures, &random), 25 * kSecondNs / 4);
      EXPECT_GE(ReconnectPause(failures, &random), 15 * kSecondNs / 4);
    }
  }
  EXPECT_LT(shortest, 80 * kMillisecondNs);
  EXPECT_GT(longest, 120 * kMillisecondNs);
}

// B15, fault 25: a thousand nodes lose the same peer, in virtual time. Once their pauses have grown, its address is
// dialled evenly, 200 times a second; without jitter all would come within the same 10 ms.
TEST(Retry, AThousandNodesDoNotComeBackAtOnce) {
  constexpr int kNodes = 1000;
  constexpr TimeNs kSlot = 10 * kMillisecondNs;
  std::map<TimeNs, int> dials;
  for (int node = 0; node < kNodes; ++node) {
    Random random(std::uint64_t(node) + 1);
    TimeNs now = 0;
    for (int failures = 0; now < 60 * kSecondNs; ++failures) {
      now += ReconnectPause(failures, &random);
      if (now >= 30 * kSecondNs && now < 60 * kSecondNs) ++dials[now / kSlot];
    }
  }
  int total = 0, most = 0;
  for (const auto& [slot, count] : dials) {
    total += count;
    most = std::max(most, count);
  }
  EXPECT_NEAR(total, 30 * kNodes / 5, kNodes);
  EXPECT_LT(most, kNodes / 50);
}

}  // namespace
}  // namespace lynx
