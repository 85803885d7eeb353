#include "speculate/draft_cost.h"

#include <gtest/gtest.h>

namespace lynx {
namespace {

StepCost Steps(double fixed_s, double per_token_s) {
  StepCost cost;
  for (int i = 0; i < 200; ++i) {
    const int tokens = 1 + i % 16;
    cost.Add(tokens, fixed_s + per_token_s * tokens);
  }
  return cost;
}

TEST(DraftCost, StepsAreFitted) {
  EXPECT_FALSE(StepCost().known());
  const StepCost cost = Steps(0.02, 0.005);
  EXPECT_NEAR(cost.fixed_s(), 0.02, 0.001);
  EXPECT_NEAR(cost.per_token_s(), 0.005, 0.0002);
  // The engine became twice as fast.
  StepCost changed = cost;
  for (int i = 0; i < 200; ++i) changed.Add(1 + i % 16, 0.01 + 0.0025 * (1 + i % 16));
  EXPECT_NEAR(changed.fixed_s(), 0.01, 0.001);
}

TEST(DraftCost, StepsOfOneSizeAreSplitEvenly) {
  StepCost cost;
  for (int i = 0; i < 10; ++i) cost.Add(1, 0.03);
  EXPECT_NEAR(cost.fixed_s(), 0.015, 1e-6);
  EXPECT_NEAR(cost.per_token_s(), 0.015, 1e-6);
}

TEST(DraftCost, AcceptanceFollowsWhatIsSeen) {
  Acceptance acceptance;
  EXPECT_NEAR(acceptance.survival(), 0.99, 1e-9);
  for (int i = 0; i < 50; ++i) acceptance.Add(16, 15);
  EXPECT_NEAR(acceptance.survival(), 15.0 / 16, 0.01);
  for (int i = 0; i < 50; ++i) acceptance.Add(16, 0);
  EXPECT_LT(acceptance.survival(), 0.1);
  for (int i = 0; i < 20; ++i) acceptance.Add(4, 4);  // what probing finds brings it back
  EXPECT_GT(acceptance.survival(), 0.8);
}

TEST(DraftCost, DraftsThatStandAloneArePaid) {
  const StepCost gpu = Steps(0.02, 0.0001), cpu = Steps(0.01, 0.01);
  EXPECT_EQ(DraftsWorth(gpu, 1, 0, 64), 64);
  EXPECT_EQ(DraftsWorth(cpu, 1, 0, 64), 64);
  EXPECT_GT(DraftsWorth(gpu, 0.95, 0, 64), 60);
  EXPECT_NEAR(DraftsWorth(cpu, 0.95, 0, 64), 13, 1);  // until a draft is as likely to fall as to stand
  EXPECT_EQ(DraftsWorth(cpu, 0.2, 0, 64), 0);
  EXPECT_EQ(DraftsWorth(StepCost(), 0.2, 0, 64), 64) << "nothing is known yet";
  EXPECT_EQ(DraftsWorth(gpu, 1, 0, 0), 0);
}

TEST(DraftCost, OthersCount) {
  const StepCost gpu = Steps(0.02, 0.0001), cpu = Steps(0.01, 0.01), bound = Steps(0.0001, 0.01);
  EXPECT_EQ(DraftsWorth(gpu, 1, 32, 64), 64) << "a GPU has room";
  EXPECT_EQ(DraftsWorth(bound, 0.98, 31, 64), 0) << "an engine without idle time has none";
  EXPECT_LE(DraftsWorth(cpu, 0.97, 8, 64), DraftsWorth(cpu, 0.97, 0, 64));
}

// 12.5 MB/s and steps of 20 ms: 250 kB on the link are the time of a draft.
TEST(DraftCost, AnchorsGoFirstWhereThatSavesMoreThanOthersLose) {
  const StepCost gpu = Steps(0.02, 0.0001);
  const LinkTurn alone{12.5e6, 5e6, 10e6, 0, 0};
  EXPECT_TRUE(AnchorFirstPays(gpu, 0.95, 64, alone));
  // Its own residual gives time for 40 drafts, of which most that can stand do.
  EXPECT_FALSE(AnchorFirstPays(gpu, 0.95, 64, {12.5e6, 5e6, 10e6, 1, 10e6}));
  EXPECT_FALSE(AnchorFirstPays(gpu, 0.95, 64, {12.5e6, 5e6, 10e6, 7, 70e6}));
  // A short prompt behind a long cache: hardly anything is lost, and its own residual gives time for one draft.
  EXPECT_TRUE(AnchorFirstPays(gpu, 0.95, 64, {12.5e6, 100e3, 250e3, 1, 20e6}));
  EXPECT_FALSE(AnchorFirstPays(gpu, 0.95, 0, {12.5e6, 100e3, 250e3, 1, 20e6})) << "without drafts";
  EXPECT_FALSE(AnchorFirstPays(gpu, 0.1, 64, {12.5e6, 100e3, 250e3, 1, 20e6})) << "drafts that fall";
  EXPECT_FALSE(AnchorFirstPays(StepCost(), 0.95, 64, {12.5e6, 100e3, 250e3, 1, 20e6})) << "nothing is known yet";
  EXPECT_FALSE(AnchorFirstPays(gpu, 0.95, 64, {0, 100e3, 250e3, 1, 20e6}));
}

}  // namespace
}  // namespace lynx
