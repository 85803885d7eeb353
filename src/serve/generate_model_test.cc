// The whole path on a real model: prompts of 200 to 700 tokens over a slow link, drafts, and exact output.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/llama/llama_engine.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

constexpr const char* kTexts[] = {
    "The lighthouse keeper wrote down the weather every morning for forty years. He noted the wind, the height of the "
    "waves and the colour of the sky, and when a ship passed he wrote its name and the hour. Nobody had asked him to. "
    "After his death a school teacher found the books in a dry cupboard under the stairs, eighty of them, tied with "
    "string. She read them one winter and saw that the storms came in groups, with quiet years between, and that the "
    "keeper had seen it too: on the last page of every seventh book stood a small drawing of a wheel. She sent copies "
    "to the weather office in the capital, where a young engineer typed all the numbers into a machine and found the "
    "same wheel turning in them.",
    "To bake a simple loaf, weigh five hundred grams of flour, three hundred and forty grams of water, ten grams of "
    "salt and two grams of dry yeast. Mix them in a bowl until no dry flour is left and wait twenty minutes. Fold the "
    "dough four times from the edge to the middle, turn the bowl a little after each fold, and wait again. Repeat this "
    "three times. Let the dough rest in a cool place over night. In the morning shape it into a ball, put it on paper, "
    "and heat the oven with an iron pot inside. Cut the top of the dough with a sharp knife, lower it into the hot "
    "pot, close the lid, and bake for thirty minutes. Take the lid off and bake until the crust is dark. Listen: a "
    "good loaf sings while it cools.",
    "A cache keeps copies of things that were slow to get, in a place from which they are quick to get again. It works "
    "because programs ask for the same things often, and for things that lie near each other. When the cache is full "
    "something has to go, and which one is a guess about the future. Throwing out what was used least recently is a "
    "good guess for most programs and a very bad one for a program that walks through a list slightly longer than the "
    "cache, again and again. Writing is harder than reading: either every write goes through to the slow place at "
    "once, or the cache remembers which copies are newer and writes them back when they have to leave. If two "
    "processors have caches of their own they must agree on who may write, and this agreement costs more than most "
    "people expect.",
    "Dear Ana, the train was six hours late, but I would not have missed the view for anything. Between the second and "
    "the third tunnel the valley opens for less than a minute, and one sees the lake, the two islands, and the old "
    "mill with its red wheel. An old man beside me said that the wheel had stopped on the day the factory opened and "
    "that it would turn again when the factory closed. I asked him when that would be. He looked at his watch. In the "
    "town I found the house that you described, with the blue door and the three apple trees, although one of them is "
    "now only a stump. The woman who lives there let me see the kitchen. She has kept the stove and the bench. On the "
    "wall, low down, somebody scratched the heights of five children, and I believe the smallest is you.",
    "The committee met on the first Tuesday of the month to decide where the new bridge should stand. The engineer "
    "showed three places. The first is the cheapest, because the river is narrow there, but the road would have to "
    "cross the school yard. The second is safe from floods and close to the station, and costs a third more. The third "
    "was the wish of the shop owners, and the ground is soft. A farmer asked who would pay for the road on the other "
    "bank, and nobody could say. After two hours they voted: four for the second place, three for the first, none for "
    "the third. The treasurer then reported that the money would be enough for one half of the bridge. It was agreed "
    "to begin with the half on this side, and to ask the village on the other bank about the rest.",
};
constexpr const char* kQuestions[] = {"What did the keeper notice?", "List the steps in order.",
                                      "When is the usual guess a bad one?", "What did the writer see from the train?",
                                      "Which place won, and why?"};

std::string ModelPath() {
  const char* path = std::getenv("LYNX_MODEL");
  return path == nullptr ? std::string() : path;
}

std::unique_ptr<Engine> OpenModel(int max_sequences, bool unified) {
  LlamaOptions options;
  options.model_path = ModelPath();
  options.max_tokens = 1024;
  options.max_sequences = max_sequences;
  options.unified = unified;
  auto engine = OpenLlamaEngine(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// Text i and the ones after it, then its question.
std::vector<Token> PromptOf(const Engine& engine, int i) {
  std::string text;
  for (int part = 0; part <= 1 + i % 3; ++part) text += std::string(kTexts[(i + part) % 5]) + "\n\n";
  return engine.Tokenize(engine.ChatPrompt({{"user", text + kQuestions[i]}}).value(), true).value();
}

TEST(GenerateModel, ExactOnFivePromptsTwoCodecsTwoSamplings) {
  ASSERT_FALSE(ModelPath().empty()) << "set LYNX_MODEL to a GGUF file (scripts/test does)";
  Watchdog watchdog(800);
  auto prefill_engine = OpenModel(3, true);
  auto decode_engine = OpenModel(2, false);
  ASSERT_TRUE(prefill_engine && decode_engine);
  const PrefillServer server(std::move(prefill_engine));
  LinkOptions link;
  link.to = server.address();
  link.bits_per_second = 40e6;
  const auto emulator = LinkEmulator::Start(link).value();
  DecodeClient client(emulator->listen_address(), std::move(decode_engine));

  SamplingOptions sampled = Coupled(0.8f, 7);
  sampled.top_k = 40;
  sampled.top_p = 0.95f;
  int drafted = 0, accepted = 0;
  for (int i = 0; i < 5; ++i) {
    const auto prompt = PromptOf(*client.engine(), i);
    EXPECT_GE(prompt.size(), 200u);
    EXPECT_LE(prompt.size(), 700u);
    for (const std::string codec : {"nested", "paper"}) {
      for (const SamplingOptions& sampling : {SamplingOptions{}, sampled}) {
        SCOPED_TRACE("prompt " + std::to_string(i) + ", " + codec + ", temperature " +
                     std::to_string(sampling.temperature));
        GenerateRequest request = RequestFor(prompt, codec, sampling);
        request.max_new_tokens = 24;
        const auto result = client.Generate(request);
        ASSERT_TRUE(result.ok()) << result.status().ToString();
        EXPECT_TRUE(result->checked);
        EXPECT_TRUE(result->exact) << result->difference;
        EXPECT_EQ(result->tokens.size() == 24, result->reason == FinishReason::kMaxTokens);
        drafted += result->drafted;
        accepted += result->accepted;
      }
    }
  }
  EXPECT_GT(drafted, 40);
  EXPECT_GT(accepted, 0);
  EXPECT_LE(accepted, drafted);
}

// A chat of two turns over a slow link, with and without kept conversations: the second turn of one transfers the new
// tokens only, and both are exact.
TEST(GenerateModel, TheSecondTurnOfAChat) {
  ASSERT_FALSE(ModelPath().empty()) << "set LYNX_MODEL to a GGUF file (scripts/test does)";
  Watchdog watchdog(800);
  std::uint64_t bytes[2] = {0, 0};
  for (const bool keep : {false, true}) {
    auto prefill_engine = OpenModel(3, true);
    const auto engine = OpenModel(2, false);
    ASSERT_TRUE(prefill_engine && engine);
    const PrefillServer server(std::move(prefill_engine));
    LinkOptions link;
    link.to = server.address();
    link.bits_per_second = 40e6;
    const auto emulator = LinkEmulator::Start(link).value();
    DecodeOptions options;
    options.prefill.addresses = {emulator->listen_address()};
    options.keep_bytes = keep ? 256 << 20 : 0;
    const auto node = DecodeNode::Start(engine.get(), options).value();
    ASSERT_TRUE(node->AwaitPrefill().ok());
    const auto run = [&](const std::vector<ChatMessage>& messages) {
      GenerateRequest request =
          RequestFor(engine->Tokenize(engine->ChatPrompt(messages).value(), true).value(), "lynx");
      request.max_new_tokens = 48;
      auto result = node->Generate(request, nullptr, nullptr);
      EXPECT_TRUE(result.ok()) << result.status().ToString();
      if (!result.ok()) return GenerateResult();
      EXPECT_TRUE(result->checked);
      EXPECT_TRUE(result->exact) << result->difference;
      EXPECT_GE(result->tokens.size(), 2u);
      std::printf("%s: %zu tokens, %d kept, %d read before, %llu bytes, first committed token after %.3f s\n",
                  keep ? "kept" : "sent", request.prompt.size(), result->kept_tokens, result->reused_tokens,
                  static_cast<unsigned long long>(result->stream_bytes.front() + result->stream_bytes.back()),
                  result->commit_s.at(1));
      return *result;
    };
    std::vector<ChatMessage> messages = {
        {"user", std::string(kTexts[0]) + "\n\n" + kTexts[1] + "\n\n" + kTexts[2] + "\n\n" + kQuestions[0]}};
    const GenerateResult first = run(messages);
    messages.push_back({"assistant", first.text});
    messages.push_back({"user", "And what did he write down when a ship passed?"});
    const GenerateResult second = run(messages);
    ASSERT_EQ(second.stream_bytes.size(), 2u);
    bytes[keep] = second.stream_bytes[0] + second.stream_bytes[1];
    EXPECT_EQ(second.kept_tokens > 400, keep);
  }
  EXPECT_LT(bytes[true] * 4, bytes[false]);
}

}  // namespace
}  // namespace lynx
