#include "serve/codec_choice.h"

#include <gtest/gtest.h>

namespace lynx {
namespace {

TEST(CodecChoice, TheEncoderMustKeepUpWithTheLink) {
  EXPECT_EQ(ChooseCodec(0, 1), "lynx");
  EXPECT_EQ(ChooseCodec(1e8, 1), "lynx");
  EXPECT_EQ(ChooseCodec(1e9, 1), "lynx");
  EXPECT_EQ(ChooseCodec(10e9, 1), "nested");
  EXPECT_EQ(ChooseCodec(10e9, 16), "lynx");
  EXPECT_EQ(ChooseCodec(100e9, 16), "nested");
}

}  // namespace
}  // namespace lynx
