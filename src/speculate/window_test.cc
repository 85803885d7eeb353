#include "speculate/window.h"

#include <gtest/gtest.h>

#include <limits>

namespace lynx {
namespace {

TEST(Window, WholeStepsBeforeTheArrival) {
  EXPECT_EQ(DraftsAllowed(100, 200, 10, 0, 64), 10);
  EXPECT_EQ(DraftsAllowed(100, 199, 10, 0, 64), 9);
  EXPECT_EQ(DraftsAllowed(100, 200, 10, 7, 64), 17);
  EXPECT_EQ(DraftsAllowed(100, 109, 10, 3, 64), 3);
  EXPECT_EQ(DraftsAllowed(100, 100, 10, 3, 64), 3);
  EXPECT_EQ(DraftsAllowed(100, 50, 10, 3, 64), 3);
}

TEST(Window, CapAndUnknowns) {
  EXPECT_EQ(DraftsAllowed(0, 1'000'000, 10, 5, 64), 64);
  EXPECT_EQ(DraftsAllowed(0, 1'000'000, 10, 70, 64), 64);
  EXPECT_EQ(DraftsAllowed(0, 5, 10, 70, 64), 64);
  EXPECT_EQ(DraftsAllowed(0, std::nullopt, 10, 5, 64), 64);
  EXPECT_EQ(DraftsAllowed(0, 1000, 0, 5, 64), 64);
  EXPECT_EQ(DraftsAllowed(0, 1000, 10, 0, 0), 0);
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min(), kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(DraftsAllowed(kMin, kMax, 1, 0, 64), 64);
  EXPECT_EQ(DraftsAllowed(kMax, kMin, 1, 2, 64), 2);
}

}  // namespace
}  // namespace lynx
