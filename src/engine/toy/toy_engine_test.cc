#include "engine/toy/toy_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float16.h"
#include "base/random.h"

namespace lynx {
namespace {

std::unique_ptr<Engine> Make(const ToyOptions& options = {}) { return std::move(MakeToyEngine(options).value()); }

std::vector<Token> RandomTokens(int count, int vocab, std::uint64_t seed) {
  Random random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = Token(random.Below(vocab));
  return tokens;
}

std::vector<float> StepAll(Engine* engine, SequenceId sequence, std::span<const Token> tokens) {
  std::vector<float> logits;
  const StepInput input{sequence, tokens, Logits::kAll};
  EXPECT_TRUE(engine->Step({&input, 1}, &logits).ok());
  return logits;
}

std::vector<std::byte> Cells(Engine* engine, SequenceId sequence, int first, int count) {
  CacheBlock block(engine->info().shape, first, count);
  EXPECT_TRUE(engine->ReadBlock(sequence, &block).ok());
  std::vector<std::byte> bytes;
  for (int layer = 0; layer < int(block.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = block.Rows(layer, kind);
      bytes.insert(bytes.end(), rows.begin(), rows.end());
    }
  }
  return bytes;
}

class ToyShapes : public testing::TestWithParam<ToyOptions> {};

TEST_P(ToyShapes, BatchedEqualsStepwise) {
  const auto engine = Make(GetParam());
  const auto tokens = RandomTokens(40, engine->info().vocab_size, 7);
  const SequenceId a = *engine->Open(), b = *engine->Open();
  const std::vector<float> batched = StepAll(engine.get(), a, tokens);
  std::vector<float> single;
  for (const Token& token : tokens) {
    const auto row = StepAll(engine.get(), b, {&token, 1});
    single.insert(single.end(), row.begin(), row.end());
  }
  EXPECT_EQ(batched, single);
  EXPECT_EQ(Cells(engine.get(), a, 0, 40), Cells(engine.get(), b, 0, 40));
  EXPECT_TRUE(std::all_of(batched.begin(), batched.end(), [](float x) { return std::isfinite(x); }));
}

TEST_P(ToyShapes, CacheCrossesEngines) {
  const auto sender = Make(GetParam()), receiver = Make(GetParam());
  const auto tokens = RandomTokens(30, sender->info().vocab_size, 8);
  const SequenceId from = *sender->Open(), to = *receiver->Open();
  StepAll(sender.get(), from, tokens);
  for (const auto& [first, count] : {std::pair{0, 11}, {11, 19}, {5, 9}}) {
    CacheBlock block(sender->info().shape, first, count);
    ASSERT_TRUE(sender->ReadBlock(from, &block).ok());
    ASSERT_TRUE(receiver->WriteBlock(to, block).ok());
  }
  EXPECT_EQ(receiver->Length(to), 30);
  EXPECT_EQ(Cells(sender.get(), from, 0, 30), Cells(receiver.get(), to, 0, 30));
  const auto more = RandomTokens(5, sender->info().vocab_size, 9);
  EXPECT_EQ(StepAll(sender.get(), from, more), StepAll(receiver.get(), to, more));
}

TEST_P(ToyShapes, TruncateAndCopyForget) {
  const auto engine = Make(GetParam());
  const auto tokens = RandomTokens(20, engine->info().vocab_size, 10);
  const SequenceId a = *engine->Open(), b = *engine->Open();
  StepAll(engine.get(), a, tokens);
  ASSERT_TRUE(engine->CopyPrefix(a, b, 12).ok());
  ASSERT_TRUE(engine->Truncate(a, 12).ok());
  const auto more = RandomTokens(6, engine->info().vocab_size, 11);
  EXPECT_EQ(StepAll(engine.get(), a, more), StepAll(engine.get(), b, more));
}

INSTANTIATE_TEST_SUITE_P(All, ToyShapes,
                         testing::Values(ToyOptions{}, ToyOptions{.seed = 3, .element_type = ElementType::kF16},
                                         ToyOptions{.seed = 4, .element_type = ElementType::kF32},
                                         ToyOptions{.seed = 5, .heads = 3, .kv_heads = 3, .head_dim = 6, .vocab = 100},
                                         ToyOptions{.seed = 6, .layers = 3, .key_only_last_layer = true}));

TEST(Toy, SequencesSteppedTogetherDoNotMix) {
  const auto engine = Make(), alone = Make();
  const auto first = RandomTokens(9, 64, 1), second = RandomTokens(5, 64, 2);
  const SequenceId a = *engine->Open(), b = *engine->Open(), c = *alone->Open();
  const StepInput inputs[] = {{a, first, Logits::kLast}, {b, second, Logits::kAll}};
  std::vector<float> logits;
  ASSERT_TRUE(engine->Step(inputs, &logits).ok());
  ASSERT_EQ(logits.size(), 64u * 6);
  const auto wanted = StepAll(alone.get(), c, second);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), logits.begin() + 64));
}

TEST(Toy, ThePromptMatters) {
  const auto engine = Make();
  const SequenceId a = *engine->Open(), b = *engine->Open();
  StepAll(engine.get(), a, RandomTokens(20, 64, 1));
  StepAll(engine.get(), b, RandomTokens(20, 64, 2));
  const Token same = 5;
  EXPECT_NE(StepAll(engine.get(), a, {&same, 1}), StepAll(engine.get(), b, {&same, 1}));
}

TEST(Toy, RefusesWithoutChange) {
  const auto engine = Make({.max_tokens = 10, .max_sequences = 1});
  const SequenceId a = *engine->Open();
  EXPECT_EQ(engine->Open().status().code(), ErrorCode::kLimit);
  StepAll(engine.get(), a, RandomTokens(8, 64, 1));
  const auto before = Cells(engine.get(), a, 0, 8);
  std::vector<float> logits;
  const auto step = [&](SequenceId sequence, std::vector<Token> tokens, std::vector<float>* out = nullptr,
                        Logits wanted = Logits::kNone) {
    const StepInput input{sequence, tokens, wanted};
    return engine->Step({&input, 1}, out).code();
  };
  EXPECT_EQ(step(a, {1, 2, 3}), ErrorCode::kLimit);
  EXPECT_EQ(step(a, {64}), ErrorCode::kInvalid);
  EXPECT_EQ(step(a, {-1}), ErrorCode::kInvalid);
  EXPECT_EQ(step(7, {1}), ErrorCode::kInvalid);
  EXPECT_EQ(step(a, {1}, nullptr, Logits::kLast), ErrorCode::kInvalid);
  EXPECT_EQ(engine->Truncate(a, 9).code(), ErrorCode::kInvalid);
  EXPECT_EQ(engine->Length(a), 8);

  const auto write = [&](CacheBlock block) { return engine->WriteBlock(a, block).code(); };
  EXPECT_EQ(write(CacheBlock(engine->info().shape, 9, 1)), ErrorCode::kInvalid);
  EXPECT_EQ(write(CacheBlock(engine->info().shape, 4, 7)), ErrorCode::kLimit);
  EXPECT_EQ(write(CacheBlock(Make({.layers = 1})->info().shape, 0, 1)), ErrorCode::kInvalid);
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CacheBlock block(engine->info().shape, 0, 4);
    StoreElement(bad, ElementType::kBf16, &block.Rows(1, KvKind::kValue)[6]);
    EXPECT_EQ(write(block), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(Cells(engine.get(), a, 0, 8), before);
  engine->Close(a);
  EXPECT_TRUE(engine->Open().ok());
}

TEST(Toy, Text) {
  const auto engine = Make({.vocab = 128});
  const std::string text = "Hello, world ~";
  std::string back;
  const std::vector<Token> tokens = engine->Tokenize(text, true).value();
  for (Token token : tokens) back += engine->TokenText(token);
  EXPECT_EQ(back, text);
  EXPECT_TRUE(engine->IsEndOfText(127));
  EXPECT_EQ(engine->TokenText(127), "");
  EXPECT_EQ(engine->TokenText(128), "");
  EXPECT_EQ(engine->TokenText(100), "<100>");
  const std::vector<Token> odd = engine->Tokenize("\x01\xff\xc3\xa9", true).value();
  for (Token token : odd) EXPECT_FALSE(engine->IsEndOfText(token));
  EXPECT_FALSE(MakeToyEngine({.heads = 3}).ok());
  EXPECT_FALSE(MakeToyEngine({.head_dim = 7}).ok());
}

}  // namespace
}  // namespace lynx
