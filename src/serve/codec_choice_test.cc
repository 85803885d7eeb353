#include "serve/codec_choice.h"

#include <gtest/gtest.h>

namespace lynx {
namespace {

constexpr double kPrompt = 47e6;  // elements of 4,096 tokens of SmolLM2-135M

TEST(CodecChoice, UnknownLinksAndEnginesGetTheDefault) {
  EXPECT_EQ(ChooseCodec({kPrompt, 0, 0.02, 1}), "lynx");
  EXPECT_EQ(ChooseCodec({kPrompt, 1e8, 0, 1}), "lynx");
}

TEST(CodecChoice, SlowLinksGetFewerBytesAndOthersMoreAcceptedDrafts) {
  EXPECT_EQ(ChooseCodec({kPrompt, 1e7, 0.02, 1}), "lynx:anchor_bits=1.35");
  EXPECT_EQ(ChooseCodec({kPrompt, 3e8, 0.02, 1}), "lynx");
  EXPECT_EQ(ChooseCodec({kPrompt, 1e8, 0.001, 1}), "lynx:anchor_bits=1.35") << "drafts of a fast engine save nothing";
}

TEST(CodecChoice, TheEncoderMustKeepUpWithTheLink) {
  EXPECT_EQ(ChooseCodec({kPrompt, 100e9, 0.001, 1}), "nested");
  EXPECT_EQ(ChooseCodec({kPrompt, 10e9, 0.001, 1}), "nested");
  EXPECT_NE(ChooseCodec({kPrompt, 10e9, 0.02, 16}), "nested");
}

}  // namespace
}  // namespace lynx
