#include "front/answer_stream.h"

#include <gtest/gtest.h>

#include <random>

#include <nlohmann/json.hpp>

#include "front/http_client_test.h"
#include "speculate/stop.h"

namespace lynx {
namespace {

using nlohmann::json;

// A token is a byte.
class ByteEngine final : public Engine {
 public:
  const EngineInfo& info() const override { return info_; }
  Result<std::vector<Token>> Tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  std::string TokenText(Token token) const override { return std::string(1, char(token)); }
  bool IsEndOfText(Token) const override { return false; }
  Result<std::string> ChatPrompt(const std::vector<ChatMessage>&) const override { return None(); }
  Result<SequenceId> Open() override { return None(); }
  void Close(SequenceId) override {}
  int Length(SequenceId) const override { return 0; }
  Status Step(std::span<const StepInput>, std::vector<float>*) override { return None(); }
  Status Truncate(SequenceId, int) override { return None(); }
  Status CopyPrefix(SequenceId, SequenceId, int) override { return None(); }
  Status ReadBlock(SequenceId, CacheBlock*) override { return None(); }
  Status WriteBlock(SequenceId, const CacheBlock&) override { return None(); }

 private:
  static Status None() { return Unsupported("text only"); }
  EngineInfo info_;
};

std::vector<Token> Tokens(std::string_view text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(std::uint8_t(c));
  return tokens;
}

// A client that follows the events: what it holds for certain, and its drafts.
struct Follower {
  std::string text, committed_text, drafts;
  std::size_t committed = 0, known = 0;
  void Read(const std::string& events) {
    for (const auto& [name, data] : Events(events)) {
      const json chunk = json::parse(data);  // throws on broken UTF-8
      EXPECT_EQ(data.find("\uFFFD"), std::string::npos) << "a character was broken";
      if (name.empty()) {
        text += chunk["choices"][0]["text"].get<std::string>();
        continue;
      }
      EXPECT_TRUE(chunk["choices"].empty());
      const json& lynx = chunk["lynx"];
      EXPECT_EQ(lynx["event"], name);
      const auto position = lynx["position"].get<std::size_t>();
      const auto count = lynx["count"].get<std::size_t>();
      if (name == "draft") {
        EXPECT_EQ(position, std::max(known, committed));
        known = position + count;
      } else if (name == "commit") {
        EXPECT_EQ(position, committed);
        committed += count;
        known = std::max(known, committed);
        committed_text += lynx["text"].get<std::string>();
      } else {
        EXPECT_EQ(name, "rollback");
        EXPECT_EQ(position + count, known);
        EXPECT_GE(position, committed);
        known = position;
      }
    }
  }
};

TEST(AnswerStream, DraftsFollowAnyHistoryAndBreakNoCharacter) {
  const std::string truth = "aé€😀 Ω und ß, 漢字 z";
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const ByteEngine engine;
    AnswerStream stream(&engine, {}, {.drafts = true});
    Follower client;
    std::size_t committed = 0, shown = 0;
    while (committed < truth.size()) {
      committed += random() % 4;
      committed = std::min(committed, truth.size());
      AnswerRun::State state;
      state.committed = int(committed);
      // Right or wrong, drafts are whole characters or end inside one.
      std::string tokens = truth.substr(0, committed) + (random() % 2 ? truth.substr(committed, random() % 6) : "");
      state.tokens = Tokens(tokens);
      const std::size_t whole = WholeCharacters(std::string_view(truth).substr(0, committed));
      state.new_text = truth.substr(shown, whole - shown);
      shown = whole;
      client.Read(stream.Next(state));
      EXPECT_EQ(client.known, tokens.size());
      EXPECT_EQ(client.committed, committed);
    }
    EXPECT_EQ(client.text, truth);
    EXPECT_EQ(client.committed_text, truth);
  }
}

TEST(AnswerStream, TakesBackWhatWasWrong) {
  const ByteEngine engine;
  AnswerStream stream(&engine, {}, {.drafts = true});
  EXPECT_EQ(Events(stream.Next({"a", Tokens("abcd"), 1, false})).size(), 3u);  // text, commit a, draft bcd
  const auto events = Events(stream.Next({"bX", Tokens("abXY"), 3, false}));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].first, "rollback");
  EXPECT_EQ(json::parse(events[1].second)["lynx"],
            json::parse(R"({"event":"rollback","position":2,"count":2,"text":""})"));
  EXPECT_EQ(json::parse(events[2].second)["lynx"],
            json::parse(R"({"event":"commit","position":1,"count":2,"text":"bX"})"));
  EXPECT_EQ(json::parse(events[3].second)["lynx"],
            json::parse(R"({"event":"draft","position":3,"count":1,"text":"Y"})"));
  EXPECT_EQ(stream.Next({"", Tokens("abXY"), 3, false}), "");
}

TEST(AnswerStream, HidesDraftsFromWhoDidNotAsk) {
  const ByteEngine engine;
  AnswerStream stream(&engine, {}, {});
  EXPECT_EQ(stream.Next({"", Tokens("abc"), 0, false}), "");
  EXPECT_EQ(Events(stream.Next({"ab", Tokens("abc"), 2, false})).size(), 1u);
}

}  // namespace
}  // namespace lynx
