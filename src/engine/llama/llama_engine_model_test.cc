// The engine on a real model. Exactness is what speculation stands on, so every comparison is bit for bit.
#include "engine/llama/llama_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/random.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

std::string ModelPath() {
  const char* path = std::getenv("LYNX_MODEL");
  return path == nullptr ? std::string() : path;
}

LlamaOptions Options(int max_sequences = 1, bool unified = false) {
  LlamaOptions options;
  options.model_path = ModelPath();
  options.max_tokens = 1024;
  options.max_sequences = max_sequences;
  options.unified = unified;
  return options;
}

std::unique_ptr<Engine> OpenEngine(const LlamaOptions& options) {
  auto engine = OpenLlamaEngine(options);
  if (!engine.ok()) {
    ADD_FAILURE() << engine.status().ToString();
    return nullptr;
  }
  return std::move(engine).value();
}

class LlamaEngineModel : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(ModelPath().empty()) << "set LYNX_MODEL to a GGUF file (scripts/test does)";
    ASSERT_TRUE(std::filesystem::exists(ModelPath())) << "LYNX_MODEL: no file at " << ModelPath();
  }
};

std::vector<Token> RandomTokens(int count, std::uint64_t seed, int vocab_size) {
  Random random(seed);
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(Token(random.Below(std::uint64_t(vocab_size))));
  return tokens;
}

SequenceId MustOpen(Engine& engine) {
  auto sequence = engine.Open();
  EXPECT_TRUE(sequence.ok()) << sequence.status().ToString();
  return sequence.ok() ? *sequence : -1;
}

// Appends tokens in batches of at most `batch`; returns the logits of all rows.
std::vector<float> Append(Engine& engine, SequenceId sequence, std::span<const Token> tokens, int batch) {
  std::vector<float> all;
  for (std::size_t begin = 0; begin < tokens.size(); begin += std::size_t(batch)) {
    const std::size_t count = std::min(std::size_t(batch), tokens.size() - begin);
    std::vector<float> logits;
    const StepInput input{sequence, tokens.subspan(begin, count), Logits::kAll};
    const Status status = engine.Step(std::span(&input, 1), &logits);
    EXPECT_TRUE(status.ok()) << status.ToString();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

void Fill(Engine& engine, SequenceId sequence, std::span<const Token> tokens) {
  const StepInput input{sequence, tokens, Logits::kNone};
  const Status status = engine.Step(std::span(&input, 1), nullptr);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

CacheBlock Read(Engine& engine, SequenceId sequence, int first, int count) {
  CacheBlock block(engine.info().shape, first, count);
  const Status status = engine.ReadBlock(sequence, &block);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return block;
}

bool SameBytes(const CacheBlock& a, const CacheBlock& b) {
  for (int layer = 0; layer < int(a.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      if (!std::ranges::equal(a.Rows(layer, kind), b.Rows(layer, kind))) return false;
    }
  }
  return a.token_count() == b.token_count();
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Bytes [first, +count) of block `from`, as a block.
CacheBlock Slice(const CacheBlock& from, int first, int count) {
  CacheBlock part(from.shape(), first, count);
  for (int layer = 0; layer < int(from.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto to = part.Rows(layer, kind);
      const std::size_t row = to.size() / std::size_t(count);
      std::memcpy(to.data(), from.Rows(layer, kind).data() + row * std::size_t(first - from.first_token()), to.size());
    }
  }
  return part;
}

TEST_F(LlamaEngineModel, DescribesItself) {
  const auto engine = OpenEngine(Options(2));
  ASSERT_NE(engine, nullptr);
  const EngineInfo& info = engine->info();
  EXPECT_FALSE(info.model.empty());
  EXPECT_THAT(info.revision, ::testing::MatchesRegex("crc32c:[0-9a-f]+\\+[0-9]+"));
  EXPECT_EQ(info.max_tokens, 1024);
  EXPECT_EQ(info.max_sequences, 2);
  EXPECT_EQ(info.verify_batch, 16);
  if (info.vocab_size != 49152) GTEST_SKIP() << "the figures below are SmolLM2-135M's";
  ASSERT_EQ(info.shape.layers.size(), 30u);
  EXPECT_EQ(info.shape.BytesPerToken(), 23040);
  for (const LayerShape& layer : info.shape.layers) {
    EXPECT_EQ(layer.kv_heads, 3);
    EXPECT_EQ(layer.key_dim, 64);
    EXPECT_EQ(layer.value_dim, 64);
    EXPECT_EQ(layer.rope.pairing, RopePairing::kNorm);
    ASSERT_EQ(layer.rope.radians_per_token.size(), 32u);
    EXPECT_EQ(layer.rope.radians_per_token[0], 1.0f);
    EXPECT_NEAR(layer.rope.radians_per_token[31], 1.433e-5f, 1e-8f);
  }
}

// Layer 0 sees the token only, so its K at two positions differ by the described rotation and nothing else.
TEST_F(LlamaEngineModel, RopeIsWhatTheShapeSays) {
  const auto engine = OpenEngine(Options());
  ASSERT_NE(engine, nullptr);
  const LayerShape& layer = engine->info().shape.layers[0];
  if (layer.rope.pairing == RopePairing::kNone) GTEST_SKIP() << "this model's rotation is not described";
  const SequenceId sequence = MustOpen(*engine);
  constexpr int kTokens = 200;
  Fill(*engine, sequence, std::vector<Token>(kTokens, 1000));
  const CacheBlock block = Read(*engine, sequence, 0, kTokens);
  const auto page = block.Page({0, KvKind::kKey, 0, layer.kv_heads, 0, kTokens});
  ASSERT_TRUE(page.ok());
  const bool norm = layer.rope.pairing == RopePairing::kNorm;
  const int pairs = layer.rope.dims / 2;
  double worst = 0;
  double largest = 0;
  for (int head = 0; head < layer.kv_heads; ++head) {
    for (int pair = 0; pair < pairs; ++pair) {
      const int a = layer.rope.offset + (norm ? 2 * pair : pair);
      const int b = norm ? a + 1 : a + pairs;
      const auto at = [&](int token, int channel) {
        return double(LoadElement(page->At(token, head, channel), ElementType::kBf16));
      };
      const double angle = double(kTokens - 1) * double(layer.rope.radians_per_token[pair]);
      const double x = at(0, a) * std::cos(angle) - at(0, b) * std::sin(angle);
      const double y = at(0, a) * std::sin(angle) + at(0, b) * std::cos(angle);
      worst = std::max({worst, std::abs(x - at(kTokens - 1, a)), std::abs(y - at(kTokens - 1, b))});
      largest = std::max({largest, std::abs(x), std::abs(y)});
    }
  }
  EXPECT_LT(worst, largest * 0.02);  // BF16 rounding of two values: 2 * 2^-9 relative
}

TEST_F(LlamaEngineModel, TokensAndText) {
  const auto engine = OpenEngine(Options());
  ASSERT_NE(engine, nullptr);
  const std::string text = "Grüße, 世界! A lynx sees 🐾 far.\n\n  Two  spaces.";
  const auto tokens = engine->Tokenize(text, false);
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  std::string back;
  for (Token token : *tokens) back += engine->TokenText(token);
  EXPECT_EQ(back, text);
  EXPECT_EQ(engine->TokenText(-1), "");
  EXPECT_EQ(engine->TokenText(engine->info().vocab_size), "");
  EXPECT_FALSE(engine->IsEndOfText(-1));
  EXPECT_TRUE(engine->Tokenize("", true).ok());
  ASSERT_TRUE(engine->Tokenize(std::string(100000, 'a'), true).ok());

  const auto prompt = engine->ChatPrompt({{"user", "What is a lynx?"}});
  ASSERT_TRUE(prompt.ok()) << prompt.status().ToString();
  EXPECT_THAT(*prompt, HasSubstr("What is a lynx?"));
  const auto ids = engine->Tokenize(*prompt, true);
  ASSERT_TRUE(ids.ok());
  EXPECT_LT(ids->size(), engine->Tokenize(*prompt, false)->size());
  if (engine->info().vocab_size != 49152) return;
  EXPECT_EQ(*prompt, "<|im_start|>user\nWhat is a lynx?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(ids->front(), 1);
  EXPECT_EQ(engine->TokenText(1), "");
  EXPECT_TRUE(engine->IsEndOfText(2));
  EXPECT_FALSE(engine->IsEndOfText(1000));
}

// Deep enough for the kernels that llama.cpp keeps for long contexts and large batches (512 cells, 64 rows).
TEST_F(LlamaEngineModel, PrefillInLargeBatchesEqualsSmallOnesAndSingleTokens) {
  constexpr int kTokens = 528;
  const auto engine = OpenEngine(Options(2));
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(kTokens, 1, engine->info().vocab_size);
  const SequenceId one = MustOpen(*engine);
  const SequenceId many = MustOpen(*engine);
  auto single = Append(*engine, one, std::span(tokens).first(512), 31);
  const auto last = Append(*engine, one, std::span(tokens).subspan(512), 1);
  single.insert(single.end(), last.begin(), last.end());
  const auto batched = Append(*engine, many, tokens, 256);
  EXPECT_TRUE(SameBits(single, batched));
  EXPECT_TRUE(SameBytes(Read(*engine, one, 0, kTokens), Read(*engine, many, 0, kTokens)));
}

TEST_F(LlamaEngineModel, BatchesOfEverySizeEqualSingleSteps) {
  const auto engine = OpenEngine(Options(2));
  ASSERT_NE(engine, nullptr);
  const auto context = RandomTokens(130, 2, engine->info().vocab_size);
  const auto drafts = RandomTokens(32, 3, engine->info().vocab_size);
  const SequenceId beside = MustOpen(*engine);
  const SequenceId sequence = MustOpen(*engine);
  Fill(*engine, beside, RandomTokens(300, 4, engine->info().vocab_size));
  Fill(*engine, sequence, context);
  const auto single = Append(*engine, sequence, drafts, 1);
  const std::size_t vocab = std::size_t(engine->info().vocab_size);
  for (int batch = 2; batch <= 32; ++batch) {
    ASSERT_TRUE(engine->Truncate(sequence, int(context.size())).ok());
    const auto rows = Append(*engine, sequence, std::span(drafts).first(std::size_t(batch)), batch);
    EXPECT_TRUE(SameBits(rows, std::span(single).first(vocab * std::size_t(batch)))) << "batch of " << batch;
  }
}

TEST_F(LlamaEngineModel, RollbackEqualsNeverHavingDrafted) {
  const auto engine = OpenEngine(Options(3));
  ASSERT_NE(engine, nullptr);
  const int vocab = engine->info().vocab_size;
  const auto tokens = RandomTokens(120, 5, vocab);
  const SequenceId plain = MustOpen(*engine);
  const SequenceId drafted = MustOpen(*engine);
  const SequenceId beside = MustOpen(*engine);
  const auto expected = Append(*engine, plain, tokens, 1);
  std::vector<float> got;
  for (int begin = 0; begin < 120; begin += 20) {
    Append(*engine, drafted, RandomTokens(13, 100 + std::uint64_t(begin), vocab), 13);
    Append(*engine, beside, RandomTokens(7, 200 + std::uint64_t(begin), vocab), 7);
    ASSERT_TRUE(engine->Truncate(drafted, begin).ok());
    ASSERT_TRUE(engine->Truncate(beside, begin < 40 ? 7 : 3).ok());
    const auto rows = Append(*engine, drafted, std::span(tokens).subspan(std::size_t(begin), 20), 16);
    got.insert(got.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(engine->Length(drafted), 120);
  EXPECT_TRUE(SameBits(got, expected));
  EXPECT_TRUE(SameBytes(Read(*engine, plain, 0, 120), Read(*engine, drafted, 0, 120)));
}

TEST_F(LlamaEngineModel, SeveralSequencesInOneStep) {
  const auto engine = OpenEngine(Options(3));
  ASSERT_NE(engine, nullptr);
  const int vocab = engine->info().vocab_size;
  std::vector<SequenceId> ids;
  std::vector<std::vector<Token>> tokens;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(MustOpen(*engine));
    tokens.push_back(RandomTokens(40 + 11 * i, 6 + std::uint64_t(i), vocab));
  }
  std::vector<std::vector<float>> expected;
  for (int i = 0; i < 3; ++i) {
    expected.push_back(Append(*engine, ids[i], tokens[i], 1));
    ASSERT_TRUE(engine->Truncate(ids[i], 0).ok());
  }
  const std::vector<StepInput> inputs = {
      {ids[2], tokens[2], Logits::kAll}, {ids[0], tokens[0], Logits::kLast}, {ids[1], tokens[1], Logits::kAll}};
  std::vector<float> logits;
  ASSERT_TRUE(engine->Step(inputs, &logits).ok());
  const auto last = std::span(expected[0]).last(std::size_t(vocab));
  std::vector<float> wanted = expected[2];
  wanted.insert(wanted.end(), last.begin(), last.end());
  wanted.insert(wanted.end(), expected[1].begin(), expected[1].end());
  EXPECT_TRUE(SameBits(logits, wanted));
}

TEST_F(LlamaEngineModel, BlocksMoveBetweenEngines) {
  const auto prefill = OpenEngine(Options(2, /*unified=*/true));
  const auto decode = OpenEngine(Options(3));
  ASSERT_NE(prefill, nullptr);
  ASSERT_NE(decode, nullptr);
  const auto tokens = RandomTokens(300, 9, prefill->info().vocab_size);
  const auto next = RandomTokens(3, 10, prefill->info().vocab_size);
  Fill(*prefill, MustOpen(*prefill), RandomTokens(50, 11, prefill->info().vocab_size));
  const SequenceId from = MustOpen(*prefill);
  const SequenceId first = MustOpen(*decode);
  const SequenceId second = MustOpen(*decode);
  EXPECT_EQ(prefill->info().shape, decode->info().shape);
  EXPECT_EQ(prefill->info().revision, decode->info().revision);
  // Batches are read as they are prefilled, and appended to one sequence; another gets the whole.
  for (int begin = 0; begin < 300; begin += 128) {
    const int count = std::min(128, 300 - begin);
    Fill(*prefill, from, std::span(tokens).subspan(std::size_t(begin), std::size_t(count)));
    ASSERT_TRUE(decode->WriteBlock(first, Read(*prefill, from, begin, count)).ok());
  }
  const CacheBlock whole = Read(*prefill, from, 0, 300);
  ASSERT_TRUE(decode->WriteBlock(second, whole).ok());
  EXPECT_EQ(decode->Length(first), 300);
  EXPECT_EQ(decode->Length(second), 300);
  EXPECT_TRUE(SameBytes(whole, Read(*decode, first, 0, 300)));
  EXPECT_TRUE(SameBytes(whole, Read(*decode, second, 0, 300)));
  EXPECT_TRUE(SameBytes(Slice(whole, 100, 50), Read(*decode, second, 100, 50)));
  const auto expected = Append(*prefill, from, next, 1);
  EXPECT_TRUE(SameBits(expected, Append(*decode, first, next, 3)));
  EXPECT_TRUE(SameBits(expected, Append(*decode, second, next, 1)));
}

TEST_F(LlamaEngineModel, WritingAPartKeepsTheRest) {
  for (bool unified : {false, true}) {
    const auto engine = OpenEngine(Options(3, unified));
    ASSERT_NE(engine, nullptr);
    const int vocab = engine->info().vocab_size;
    const SequenceId beside = MustOpen(*engine);
    const SequenceId a = MustOpen(*engine);
    const SequenceId b = MustOpen(*engine);
    Fill(*engine, beside, RandomTokens(20, 12, vocab));
    Fill(*engine, a, RandomTokens(100, 13, vocab));
    Fill(*engine, b, RandomTokens(120, 14, vocab));
    const CacheBlock of_a = Read(*engine, a, 0, 100);
    const CacheBlock of_b = Read(*engine, b, 0, 120);
    ASSERT_TRUE(engine->WriteBlock(a, Slice(of_b, 30, 40)).ok());  // inside
    EXPECT_EQ(engine->Length(a), 100);
    EXPECT_TRUE(SameBytes(Slice(of_a, 0, 30), Read(*engine, a, 0, 30)));
    EXPECT_TRUE(SameBytes(Slice(of_b, 30, 40), Read(*engine, a, 30, 40)));
    EXPECT_TRUE(SameBytes(Slice(of_a, 70, 30), Read(*engine, a, 70, 30)));
    ASSERT_TRUE(engine->WriteBlock(a, Slice(of_b, 0, 30)).ok());   // in front
    ASSERT_TRUE(engine->WriteBlock(a, Slice(of_b, 70, 50)).ok());  // over the end
    EXPECT_EQ(engine->Length(a), 120);
    EXPECT_TRUE(SameBytes(of_b, Read(*engine, a, 0, 120)));
    const auto next = RandomTokens(2, 15, vocab);
    EXPECT_TRUE(SameBits(Append(*engine, b, next, 1), Append(*engine, a, next, 1)));
    const Status gap = engine->WriteBlock(beside, Slice(of_b, 30, 40));
    EXPECT_EQ(gap.code(), ErrorCode::kInvalid);
    EXPECT_THAT(gap.message(), HasSubstr("gap"));
  }
}

TEST_F(LlamaEngineModel, CopiedPrefixIsExactAndIndependent) {
  for (bool unified : {false, true}) {
    const auto engine = OpenEngine(Options(3, unified));
    ASSERT_NE(engine, nullptr);
    const int vocab = engine->info().vocab_size;
    const auto tokens = RandomTokens(90, 16, vocab);
    const auto other = RandomTokens(30, 17, vocab);
    const SequenceId from = MustOpen(*engine);
    const SequenceId to = MustOpen(*engine);
    Fill(*engine, from, tokens);
    ASSERT_TRUE(engine->CopyPrefix(from, to, 60).ok());
    EXPECT_EQ(engine->CopyPrefix(from, to, 60).code(), ErrorCode::kInvalid);
    EXPECT_EQ(engine->Length(to), 60);
    const auto branch = Append(*engine, to, other, 30);
    EXPECT_TRUE(SameBytes(Slice(Read(*engine, from, 0, 90), 0, 60), Read(*engine, to, 0, 60)));
    engine->Close(from);
    const SequenceId fresh = MustOpen(*engine);
    Fill(*engine, fresh, std::span(tokens).first(60));
    EXPECT_TRUE(SameBits(branch, Append(*engine, fresh, other, 1)));
    EXPECT_TRUE(SameBytes(Read(*engine, to, 0, 90), Read(*engine, fresh, 0, 90)));
  }
}

// In a pool, closing and truncating leave holes below other sequences: their cells must stay in order all the same.
TEST_F(LlamaEngineModel, APoolStaysExactWhileSequencesComeAndGo) {
  const auto pool = OpenEngine(Options(3, /*unified=*/true));
  const auto solo = OpenEngine(Options(1));
  ASSERT_NE(pool, nullptr);
  ASSERT_NE(solo, nullptr);
  const int vocab = pool->info().vocab_size;
  const SequenceId gone = MustOpen(*pool);
  const SequenceId cut = MustOpen(*pool);
  const SequenceId kept = MustOpen(*pool);
  const auto tokens = RandomTokens(200, 18, vocab);
  Fill(*pool, gone, RandomTokens(70, 19, vocab));
  Fill(*pool, cut, RandomTokens(70, 20, vocab));
  Append(*pool, kept, std::span(tokens).first(80), 80);
  pool->Close(gone);
  Append(*pool, kept, std::span(tokens).subspan(80, 50), 50);
  ASSERT_TRUE(pool->Truncate(cut, 10).ok());
  const auto rows = Append(*pool, kept, std::span(tokens).subspan(130), 70);
  const SequenceId sequence = MustOpen(*solo);
  const auto expected = Append(*solo, sequence, tokens, 32);
  EXPECT_TRUE(SameBits(rows, std::span(expected).subspan(130 * std::size_t(vocab))));
  EXPECT_TRUE(SameBytes(Read(*pool, kept, 0, 200), Read(*solo, sequence, 0, 200)));
}

TEST_F(LlamaEngineModel, ValuesThatAreNotFiniteAreRefusedBeforeTheCacheIsTouched) {
  const auto engine = OpenEngine(Options());
  ASSERT_NE(engine, nullptr);
  const SequenceId sequence = MustOpen(*engine);
  Fill(*engine, sequence, RandomTokens(40, 21, engine->info().vocab_size));
  const CacheBlock before = Read(*engine, sequence, 0, 40);
  const int last = int(engine->info().shape.layers.size()) - 1;
  for (float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                      -std::numeric_limits<float>::infinity()}) {
    for (int layer : {0, last}) {
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        CacheBlock block = Slice(before, 10, 30);
        const auto rows = block.Rows(layer, kind);
        StoreElement(value, ElementType::kBf16, rows.data() + rows.size() - 2);
        const Status status = engine->WriteBlock(sequence, block);
        EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
        EXPECT_THAT(status.message(), HasSubstr("layer " + std::to_string(layer)));
        EXPECT_TRUE(SameBytes(before, Read(*engine, sequence, 0, 40)));
      }
    }
  }
}

TEST_F(LlamaEngineModel, LimitsLeaveLengthsUnchanged) {
  LlamaOptions options = Options(2);
  options.max_tokens = 64;  // fewer than llama.cpp's cells
  const auto engine = OpenEngine(options);
  ASSERT_NE(engine, nullptr);
  const int vocab = engine->info().vocab_size;
  const SequenceId a = MustOpen(*engine);
  const SequenceId b = MustOpen(*engine);
  EXPECT_EQ(engine->Open().status().code(), ErrorCode::kLimit);
  const auto tokens = RandomTokens(65, 22, vocab);
  Fill(*engine, a, std::span(tokens).first(60));
  const std::span<const Token> five = std::span(tokens).last(5);
  std::vector<float> logits;
  const auto step = [&](std::vector<StepInput> inputs) { return engine->Step(inputs, &logits).code(); };
  EXPECT_EQ(step({{b, five}, {a, five}}), ErrorCode::kLimit);
  const std::vector<Token> unknown = {1, vocab};
  EXPECT_EQ(step({{b, five}, {a, unknown}}), ErrorCode::kInvalid);
  EXPECT_EQ(step({{b, five}, {b, five}}), ErrorCode::kInvalid);
  EXPECT_EQ(step({{b, {}}}), ErrorCode::kInvalid);
  EXPECT_EQ(step({{2, five}}), ErrorCode::kInvalid);
  EXPECT_EQ(step({{-1, five}}), ErrorCode::kInvalid);
  EXPECT_EQ(engine->Length(a), 60);
  EXPECT_EQ(engine->Length(b), 0);
  EXPECT_EQ(step({{a, five.first(4)}}), ErrorCode::kOk);
  EXPECT_EQ(engine->Truncate(a, 65).code(), ErrorCode::kInvalid);
  EXPECT_EQ(engine->Truncate(a, -1).code(), ErrorCode::kInvalid);
  CacheBlock behind(engine->info().shape, 60, 5);
  EXPECT_EQ(engine->ReadBlock(a, &behind).code(), ErrorCode::kInvalid);
  EXPECT_EQ(engine->WriteBlock(a, behind).code(), ErrorCode::kLimit);
  CacheShape other = engine->info().shape;
  other.layers.pop_back();
  EXPECT_EQ(engine->WriteBlock(a, CacheBlock(other, 0, 5)).code(), ErrorCode::kInvalid);
  EXPECT_EQ(engine->Length(a), 64);
  engine->Close(a);
  EXPECT_TRUE(engine->Open().ok());
}

TEST_F(LlamaEngineModel, BrokenModelFilesAreNamed) {
  LlamaOptions options = Options();
  const auto open = [&] {
    const auto engine = OpenLlamaEngine(options);
    return engine.ok() ? Ok() : engine.status();
  };
  options.model_path = "/nonexistent/model.gguf";
  EXPECT_EQ(open().code(), ErrorCode::kIo);
  EXPECT_THAT(open().message(), HasSubstr("/nonexistent/model.gguf"));

  const auto path = std::filesystem::temp_directory_path() / ("lynx_llama_" + std::to_string(std::rand()) + ".gguf");
  options.model_path = path.string();
  std::ofstream(path) << "this is no model, but it is longer than a header";
  EXPECT_EQ(open().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(open().message(), HasSubstr("not a GGUF"));
  std::filesystem::copy_file(ModelPath(), path, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(path, std::filesystem::file_size(ModelPath()) / 2);
  ::testing::internal::CaptureStderr();
  const Status truncated = open();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(truncated.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(truncated.message(), HasSubstr(path.string()));
  std::filesystem::remove(path);

  options = Options();
  options.max_tokens = 0;
  EXPECT_EQ(open().code(), ErrorCode::kInvalid);
  options.max_tokens = 8192;
  options.max_sequences = 255;
  EXPECT_EQ(open().code(), ErrorCode::kLimit);
}

TEST_F(LlamaEngineModel, LogAndProgressReachTheCaller) {
  LlamaOptions options = Options();
  options.max_tokens = 1 << 20;
  int lines = 0;
  bool limited = false;
  float loaded = 0;
  options.log = [&](std::string_view line) {
    ++lines;
    limited |= line.find("trained for") != std::string_view::npos;
    EXPECT_EQ(line.find('\n'), std::string_view::npos);
  };
  options.progress = [&](float share) { loaded = std::max(loaded, share); };
  ::testing::internal::CaptureStderr();
  const auto engine = OpenEngine(options);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ASSERT_NE(engine, nullptr);
  EXPECT_GT(lines, 10);
  EXPECT_TRUE(limited);
  EXPECT_EQ(loaded, 1.0f);
  EXPECT_LT(engine->info().max_tokens, 1 << 20);
}

}  // namespace
}  // namespace lynx
