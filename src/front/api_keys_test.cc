#include "front/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lynx {
namespace {

// printf %s secret | sha256sum
const char* const kSecret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

TEST(ApiKeys, AcceptsOnlyKeysWhoseHashIsThere) {
  const auto keys = ApiKeys::Parse("# people\n\n" + std::string(64, '0') + " nobody\r\n" + kSecret + " alice\n");
  ASSERT_TRUE(keys.ok()) << keys.status().ToString();
  EXPECT_TRUE(keys->Accept("Bearer secret"));
  for (const char* wrong : {"", "secret", "Bearer", "Bearer ", "Bearer Secret", "Bearer secret ", "Basic secret"}) {
    EXPECT_FALSE(keys->Accept(wrong)) << wrong;
  }
  EXPECT_FALSE(keys->Accept(std::string("Bearer ") + kSecret));
}

TEST(ApiKeys, RefusesFilesThatAreNone) {
  EXPECT_FALSE(ApiKeys::Parse("").ok());
  EXPECT_FALSE(ApiKeys::Parse("# only words\n").ok());
  for (const std::string& line : {std::string("secret"), std::string(63, 'a'), std::string(65, 'a'),
                                  std::string(63, 'a') + "g", std::string(64, 'a') + "\talice"}) {
    const auto keys = ApiKeys::Parse(std::string(kSecret) + "\n" + line);
    ASSERT_FALSE(keys.ok()) << line;
    EXPECT_THAT(keys.status().message(), testing::HasSubstr("line 2"));
    EXPECT_THAT(keys.status().message(), testing::Not(testing::HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace lynx
