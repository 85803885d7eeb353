// A few hundred whole systems; the rest is in tests/CMakeLists.txt (lynx-sim --seeds 20000) and
// simulation_full_test.cc.
#include "sim/simulation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lynx {
namespace {

TEST(Simulation, PromisesHold) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    for (const std::string& violation : Simulate(seed).violations) {
      ADD_FAILURE() << violation << "; see it again: lynx-sim --seed " << seed << " --verbose";
    }
  }
}

TEST(Simulation, SameSeedSameRun) {
  for (const std::uint64_t seed : {7, 21, 99}) {
    std::vector<std::string> runs[2];
    for (auto& lines : runs) {
      (void)Simulate(seed, [&lines](std::string_view line) { lines.emplace_back(line); });
    }
    EXPECT_FALSE(runs[0].empty());
    EXPECT_EQ(runs[0], runs[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lynx
