#include "speculate/stop.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace lynx {
namespace {

TEST(WholeCharacters, NeverSplits) {
  const std::string text = "aé€😀";  // 1 + 2 + 3 + 4 bytes
  const std::size_t wanted[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (std::size_t size = 0; size <= text.size(); ++size) {
    EXPECT_EQ(WholeCharacters(std::string_view(text).substr(0, size)), wanted[size]) << size;
  }
  // Bytes that can't begin a character pass.
  EXPECT_EQ(WholeCharacters("\x80"), 1u);
  EXPECT_EQ(WholeCharacters("\x80\x80\x80\x80\x80"), 5u);
  EXPECT_EQ(WholeCharacters("a\xff"), 2u);
  EXPECT_EQ(WholeCharacters("a\xc0"), 2u);
}

struct Outcome {
  std::string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

Outcome Feed(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const std::string shown = matcher.Feed(piece);
    EXPECT_EQ(WholeCharacters(shown), shown.size());
    outcome.text += shown;
  }
  outcome.stopped = matcher.stopped();
  outcome.text += matcher.Flush();
  EXPECT_EQ(matcher.shown_bytes(), outcome.text.size());
  return outcome;
}

TEST(StopMatcher, Examples) {
  EXPECT_EQ(Feed(StopMatcher({}), {"abc", "def"}), (Outcome{"abcdef", false}));
  EXPECT_EQ(Feed(StopMatcher({"END"}), {"abE", "N", "Dxyz", "more"}), (Outcome{"ab", true}));
  EXPECT_EQ(Feed(StopMatcher({"END"}), {"abE", "N"}), (Outcome{"abEN", false}));
  EXPECT_EQ(Feed(StopMatcher({"END"}), {"ENEND"}), (Outcome{"EN", true}));
  EXPECT_EQ(Feed(StopMatcher({"aab"}), {"a", "a", "a", "b"}), (Outcome{"a", true}));
  EXPECT_EQ(Feed(StopMatcher({"abcd", "bc"}), {"abcd"}), (Outcome{"a", true}));  // "bc" is complete first
  EXPECT_EQ(Feed(StopMatcher({"cd", "bcd"}), {"abcd"}), (Outcome{"a", true}));   // both at once: the longest
  EXPECT_EQ(Feed(StopMatcher({"x"}), {"\xc3", "x"}), (Outcome{"", true}));       // an unfinished character is dropped
  EXPECT_EQ(Feed(StopMatcher({"é"}), {"a\xc3", "\xa8", "\xc3", "\xa9z"}), (Outcome{"aè", true}));
  EXPECT_EQ(Feed(StopMatcher({}), {"a\xe2\x82"}), (Outcome{"a", false}));
}

TEST(StopMatcher, HoldsBackOnlyWhatItMust) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.Feed("one\n"), "one");
  EXPECT_EQ(matcher.Feed("two\n\nUse"), "\ntwo");
  EXPECT_EQ(matcher.Feed("d"), "\n\nUsed");
  EXPECT_EQ(matcher.Feed("\n\nUser"), "");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.Feed(": hi"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Flush(), "");
  EXPECT_EQ(matcher.shown_bytes(), 13u);
}

// Against a scan byte by byte, for random texts over few letters, random pieces and stop strings.
TEST(StopMatcher, AnySplitGivesTheSame) {
  Random random(3);
  const auto word = [&](int most) {
    std::string text;
    for (int size = 1 + int(random.Below(most)); size > 0; --size) text += char('a' + random.Below(2));
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE(round);
    std::vector<std::string> stops;
    for (int count = int(random.Below(4)); count > 0; --count) stops.push_back(word(5));
    const std::string text = word(20);
    Outcome wanted{text, false};
    for (std::size_t end = 1; end <= text.size() && !wanted.stopped; ++end) {
      for (const std::string& stop : stops) {
        if (!std::string_view(text).substr(0, end).ends_with(stop)) continue;
        wanted.stopped = true;
        wanted.text.resize(std::min(wanted.text.size(), end - stop.size()));
      }
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random.Below(4);
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    ASSERT_EQ(Feed(StopMatcher(stops), pieces), wanted) << text;
  }
}

TEST(StopMatcher, ChecksStops) {
  EXPECT_TRUE(CheckStops({"a", std::string(kMaxStopBytes, 'x')}).ok());
  EXPECT_EQ(CheckStops({""}).code(), ErrorCode::kInvalid);
  EXPECT_EQ(CheckStops({std::string(kMaxStopBytes + 1, 'x')}).code(), ErrorCode::kLimit);
  EXPECT_EQ(CheckStops(std::vector<std::string>(kMaxStopStrings + 1, "a")).code(), ErrorCode::kLimit);
}

}  // namespace
}  // namespace lynx
