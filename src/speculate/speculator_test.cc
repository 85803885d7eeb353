// The state machine by hand: which action follows which event. Equality with plain decoding is in
// speculator_full_test.cc.
#include <gtest/gtest.h>

#include <string>

#include "lynx/speculate.h"

namespace lynx {
namespace {

constexpr int kPrompt = 10;
SpeculatorConfig Config(int streams = 2) {
  return {.prompt_tokens = kPrompt,
          .stream_count = streams,
          .max_drafts = 4,
          .verify_batch = 3,
          .max_new_tokens = 20,
          .context_tokens = 100};
}

// Events in, expected actions out.
class Script {
 public:
  explicit Script(const SpeculatorConfig& config) : speculator_(config) {}
  Script& On(const SpeculatorEvent& event) {
    const Status status = speculator_.On(event);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return *this;
  }
  Script& Refused(const SpeculatorEvent& event) {
    const Speculator before = speculator_;
    EXPECT_EQ(speculator_.On(event).code(), ErrorCode::kInvalid) << event.index();
    EXPECT_EQ(speculator_, before);
    return *this;
  }
  Script& Next(const SpeculatorAction& wanted) {
    const SpeculatorAction action = speculator_.Next();
    EXPECT_EQ(action.index(), wanted.index());
    EXPECT_TRUE(action == wanted);
    return *this;
  }
  // Token 0 is 100, streams 0…`stream` are ready, `stream` refined.
  Script& Begin(int stream = 0) {
    On(Token0{100}).Next(Commit{{100}, 0}).Next(Wait{});
    for (int i = 0; i <= stream; ++i) On(StreamReady{i});
    return Next(Refine{stream}).On(Refined{stream});
  }
  // Drafts 101, 102, ….
  Script& Drafts(int count) {
    for (int i = 0; i < count; ++i) {
      const int index = int(speculator_.tokens().size());
      Next(Draft{speculator_.tokens().back(), index}).On(Drafted{100 + index});
    }
    return *this;
  }
  const Speculator& speculator() const { return speculator_; }

 private:
  Speculator speculator_;
};

TEST(Speculator, AllStandInBatchesThenDecodes) {
  Script script(Config());
  script.Begin().Drafts(4).Next(Wait{});
  script.On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  script.Next(Check{{100, 101, 102}, {101, 102, 103}, 1, true}).On(Checked{3});
  script.Next(Commit{{101, 102, 103}, 1});
  // The last draft is fed along: the row after it gives token 5.
  script.Next(Check{{103, 104}, {104}, 4, true}).On(Checked{1, true, 105});
  script.Next(Commit{{104, 105}, 4}).Next(Decode{105, 6}).On(Decoded{106}).Next(Commit{{106}, 6});
  script.Next(Decode{106, 7});
  EXPECT_EQ(script.speculator().drafted_total(), 4);
  EXPECT_EQ(script.speculator().accepted_total(), 4);
  EXPECT_EQ(script.speculator().committed(), 7);
}

TEST(Speculator, FirstDraftWrong) {
  Script script(Config());
  script.Begin().Drafts(4).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  script.Next(Check{{100, 101, 102}, {101, 102, 103}, 1, true}).On(Checked{0, true, 7}).Next(Commit{{7}, 1});
  script.Next(Rollback{11}).On(RolledBack{}).Next(Decode{7, 2});
  EXPECT_EQ(script.speculator().accepted_total(), 0);
  EXPECT_EQ(script.speculator().tokens(), (std::vector<Token>{100, 7}));
}

TEST(Speculator, MiddleStreamRechecksAndDraftsOn) {
  Script script(Config(3));
  script.Begin().Drafts(4).On(StreamReady{1});
  script.Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  script.Next(Check{{100, 101, 102}, {101, 102, 103}, 1, false}).On(Checked{1, true, 50});
  EXPECT_EQ(script.speculator().tokens(), (std::vector<Token>{100, 101, 50}));
  EXPECT_EQ(script.speculator().committed(), 1);
  EXPECT_EQ(script.speculator().drafted_total(), 5);
  script.Next(Rollback{12}).On(RolledBack{}).Next(Draft{50, 3}).On(Drafted{51}).Next(Draft{51, 4}).On(Drafted{52});
  script.Next(Wait{}).On(StreamReady{2}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{2}).On(Refined{2});
  script.Next(Check{{100, 101, 50}, {101, 50, 51}, 1, true}).On(Checked{3}).Next(Commit{{101, 50, 51}, 1});
  script.Next(Check{{51, 52}, {52}, 4, true}).On(Checked{0, true, 9}).Next(Commit{{9}, 4});
  script.Next(Rollback{14}).On(RolledBack{}).Next(Decode{9, 5});
}

TEST(Speculator, ANewerStreamInterruptsARecheck) {
  Script script(Config(4));
  script.Begin().Drafts(4).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1});
  script.On(StreamReady{2}).On(Refined{1}).Next(Refine{2}).On(Refined{2});
  script.Next(Check{{100, 101, 102}, {101, 102, 103}, 1, false}).On(StreamReady{3}).On(Checked{3});
  script.Next(Rollback{10}).On(RolledBack{}).Next(Refine{3}).On(Refined{3});
  script.Next(Check{{100, 101, 102}, {101, 102, 103}, 1, true});
}

TEST(Speculator, WithoutRecheckTheCellsAreFedAgain) {
  SpeculatorConfig config = Config(3);
  config.recheck_middle = false;
  config.max_drafts = 6;
  Script script(config);
  script.Begin().Drafts(5).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  script.Next(Check{{100, 101, 102}, {}, 1, false}).Refused(Checked{0, true, 5}).Refused(Checked{1}).On(Checked{});
  script.Next(Check{{103, 104}, {}, 4, false}).On(Checked{}).Next(Draft{105, 6}).On(Drafted{106}).Next(Wait{});
  EXPECT_EQ(script.speculator().drafted_total(), 6);
}

TEST(Speculator, OneStreamOnlyDecodes) {
  Script script(Config(1));
  script.Begin().Next(Decode{100, 1}).On(Decoded{101}).Next(Commit{{101}, 1}).Next(Decode{101, 2});
}

TEST(Speculator, LastStreamBeforeAnyDraft) {
  Script script(Config());
  script.On(StreamReady{0}).Next(Wait{}).On(StreamReady{1}).Next(Wait{});
  script.On(Token0{100}).Next(Commit{{100}, 0}).Next(Refine{1}).On(Refined{1}).Next(Decode{100, 1});
}

TEST(Speculator, LastStreamInADraftStep) {
  Script script(Config());
  script.Begin().Next(Draft{100, 1}).On(StreamReady{1}).Next(Wait{}).On(Drafted{101});
  script.Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  script.Next(Check{{100, 101}, {101}, 1, true});
}

TEST(Speculator, CapsAndWindow) {
  SpeculatorConfig config = Config();
  config.max_drafts = 0;
  Script none(config);  // no drafts: the first stream is not worth writing
  none.On(Token0{100}).Next(Commit{{100}, 0}).On(StreamReady{0}).Next(Wait{}).On(DraftWindow{9}).Next(Wait{});
  none.On(StreamReady{1}).Next(Refine{1}).On(Refined{1}).Next(Decode{100, 1});

  config.max_drafts = 1;
  Script one(config);
  one.Begin().Drafts(1).Next(Wait{}).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1});
  one.On(Refined{1}).Next(Check{{100, 101}, {101}, 1, true}).On(Checked{1, true, 102}).Next(Commit{{101, 102}, 1});

  Script window(Config());
  window.Begin().On(DraftWindow{2}).Drafts(2).Next(Wait{}).On(DraftWindow{1}).Next(Wait{}).On(DraftWindow{3});
  window.Drafts(1).Next(Wait{}).On(DraftWindow{99}).Drafts(1).Next(Wait{}).Refused(DraftWindow{-1});
}

TEST(Speculator, EndOfText) {
  Script at_once(Config());
  at_once.On(Token0{100, true}).Next(Commit{{100}, 0}).Next(Finish{FinishReason::kEndOfText});
  at_once.On(StreamReady{0}).Next(Finish{FinishReason::kEndOfText}).Refused(Token0{1}).Refused(Decoded{1});

  Script drafted(Config());
  drafted.Begin().Drafts(1).Next(Draft{101, 2}).On(Drafted{2, true}).Next(Wait{}).On(StreamReady{1});
  drafted.Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  drafted.Next(Check{{100, 101}, {101, 2}, 1, true}).On(Checked{2}).Next(Commit{{101, 2}, 1});
  drafted.Next(Finish{FinishReason::kEndOfText});

  // A replacement that ends the text: the fallen drafts' cells go first.
  Script replaced(Config());
  replaced.Begin().Drafts(3).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  replaced.Next(Check{{100, 101, 102}, {101, 102, 103}, 1, true}).On(Checked{1, true, 2, true});
  replaced.Next(Commit{{101, 2}, 1}).Next(Rollback{12}).On(RolledBack{}).Next(Finish{FinishReason::kEndOfText});

  // At a re-check too; and drafting goes on when the end itself falls.
  Script rechecked(Config(3));
  rechecked.Begin().Next(Draft{100, 1}).On(Drafted{2, true}).Next(Wait{}).On(StreamReady{1});
  rechecked.Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  rechecked.Next(Check{{100}, {2}, 1, false}).On(Checked{0, true, 101}).Next(Draft{101, 2}).On(Drafted{2, true});
  rechecked.Next(Wait{});
}

TEST(Speculator, Limits) {
  SpeculatorConfig config = Config();
  config.max_new_tokens = 1;
  Script one(config);
  one.On(Token0{100}).Next(Commit{{100}, 0}).Next(Finish{FinishReason::kMaxTokens});

  config.max_new_tokens = 3;
  Script three(config);  // drafts stop at the last token that can be, which is not fed
  three.Begin().Drafts(2).Next(Wait{}).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1});
  three.On(Refined{1}).Next(Check{{100, 101}, {101, 102}, 1, true}).On(Checked{2}).Next(Commit{{101, 102}, 1});
  three.Next(Finish{FinishReason::kMaxTokens});

  config = Config(1);
  config.context_tokens = kPrompt + 1;  // one token can be fed, so two can be committed
  Script full(config);
  full.Begin().Next(Decode{100, 1}).On(Decoded{101}).Next(Commit{{101}, 1}).Next(Finish{FinishReason::kContextFull});
  config.context_tokens = kPrompt;
  Script none(config);
  none.On(Token0{100}).Next(Commit{{100}, 0}).Next(Finish{FinishReason::kContextFull});
  config.max_new_tokens = 1;  // both at once: the caller's own limit is named
  Script both(config);
  both.On(Token0{100}).Next(Commit{{100}, 0}).Next(Finish{FinishReason::kMaxTokens});
}

TEST(Speculator, StopInEveryState) {
  const Finish stopped{FinishReason::kStopped};
  Script(Config()).On(StopRequested{}).Next(stopped).Refused(Token0{1}).On(StreamReady{0}).Next(stopped);
  Script(Config()).On(Token0{100}).On(StopRequested{}).Next(Commit{{100}, 0}).Next(stopped);
  Script(Config()).Begin().On(StopRequested{}).Next(stopped).Refused(Drafted{1});
  Script drafting(Config());
  drafting.Begin().Next(Draft{100, 1}).On(StopRequested{}).Next(Wait{}).On(Drafted{101}).Next(stopped);
  EXPECT_EQ(drafting.speculator().tokens().size(), 1u);
  Script checking(Config());
  checking.Begin().Drafts(2).On(StreamReady{1}).Next(Rollback{10}).On(RolledBack{}).Next(Refine{1}).On(Refined{1});
  checking.Next(Check{{100, 101, 102}, {101, 102}, 1, true}).On(StopRequested{}).On(Checked{2, true, 103});
  checking.Next(stopped);
  EXPECT_EQ(checking.speculator().committed(), 1);
  Script decoding(Config(1));
  decoding.Begin().Next(Decode{100, 1}).On(StopRequested{}).On(Decoded{101, true}).Next(stopped);
}

TEST(Speculator, RefusesWhatDoesNotFit) {
  Script script(Config());
  script.Refused(Drafted{1}).Refused(Refined{0}).Refused(Checked{}).Refused(Decoded{}).Refused(RolledBack{});
  script.Refused(StreamReady{1}).Refused(StreamReady{-1});
  script.Begin().Refused(Token0{100}).Refused(StreamReady{0}).Refused(Drafted{101});  // Next was not asked
  script.Next(Draft{100, 1}).Refused(Decoded{1}).Refused(Checked{}).Refused(Refined{0}).Refused(RolledBack{});
  script.On(Drafted{101}).Refused(Drafted{101}).Drafts(1).On(StreamReady{1}).Refused(StreamReady{2});
  script.Next(Rollback{10}).Refused(Refined{1}).On(RolledBack{}).Next(Refine{1}).Refused(Refined{0}).On(Refined{1});
  script.Next(Check{{100, 101, 102}, {101, 102}, 1, true});
  script.Refused(Checked{3, false}).Refused(Checked{-1, true}).Refused(Checked{0}).Refused(Checked{2, false});
}

TEST(Speculator, ChecksTheConfig) {
  EXPECT_TRUE(CheckSpeculator(Config()).ok());
  const auto refused = [](auto change) {
    SpeculatorConfig config = Config();
    change(&config);
    return CheckSpeculator(config).code() == ErrorCode::kInvalid;
  };
  EXPECT_TRUE(refused([](auto* config) { config->prompt_tokens = 0; }));
  EXPECT_TRUE(refused([](auto* config) { config->stream_count = 0; }));
  EXPECT_TRUE(refused([](auto* config) { config->max_drafts = -1; }));
  EXPECT_TRUE(refused([](auto* config) { config->verify_batch = 0; }));
  EXPECT_TRUE(refused([](auto* config) { config->max_new_tokens = 0; }));
  EXPECT_TRUE(refused([](auto* config) { config->context_tokens = kPrompt - 1; }));
}

}  // namespace
}  // namespace lynx
