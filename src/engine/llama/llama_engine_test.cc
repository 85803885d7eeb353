// The engine on small random models: what needs no weights worth reading.
#include "engine/llama/llama_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "engine/llama/llama_runtime.h"
#include "engine/llama/random_model_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

Result<std::unique_ptr<Engine>> OpenRandom(const RandomModelOptions& model, int max_sequences = 2, bool unified = false,
                                           int max_tokens = 1024) {
  const LlamaLog silent({});
  GgufModel gguf = MakeRandomModel(model);
  if (!gguf.model) return EngineError(TakeLlamaError("no model"));
  LlamaOptions options;
  options.max_tokens = max_tokens;
  options.max_sequences = max_sequences;
  options.unified = unified;
  options.prefill_batch = 64;
  return LlamaRuntime::Open(std::move(gguf), options);
}

std::vector<Token> RandomTokens(int count, std::uint64_t seed, int vocabulary) {
  Random random(seed);
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(Token(random.Below(std::uint64_t(vocabulary))));
  return tokens;
}

Status Append(Engine& engine, SequenceId sequence, std::span<const Token> tokens, std::vector<float>* logits) {
  const StepInput input{sequence, tokens, logits == nullptr ? Logits::kNone : Logits::kAll};
  return engine.Step(std::span(&input, 1), logits);
}

bool SameBytes(const CacheBlock& a, const CacheBlock& b) {
  for (int layer = 0; layer < int(a.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      if (!std::ranges::equal(a.Rows(layer, kind), b.Rows(layer, kind))) return false;
    }
  }
  return true;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Half of what is written into another sequence, the other half appended; the logits behind them equal to the bit.
void CheckMove(Engine& engine, const std::string& what) {
  SCOPED_TRACE(what);
  const auto tokens = RandomTokens(100, 5, engine.info().vocab_size);
  const SequenceId from = *engine.Open();
  const SequenceId to = *engine.Open();
  ASSERT_TRUE(Append(engine, from, tokens, nullptr).ok());
  CacheBlock front(engine.info().shape, 0, 60), tail(engine.info().shape, 60, 40);
  ASSERT_TRUE(engine.ReadBlock(from, &front).ok());
  ASSERT_TRUE(engine.ReadBlock(from, &tail).ok());
  ASSERT_TRUE(engine.WriteBlock(to, front).ok());
  ASSERT_TRUE(engine.WriteBlock(to, tail).ok());
  ASSERT_EQ(engine.Length(to), 100);
  CacheBlock back(engine.info().shape, 60, 40);
  ASSERT_TRUE(engine.ReadBlock(to, &back).ok());
  EXPECT_TRUE(SameBytes(tail, back));
  std::vector<float> expected, got;
  ASSERT_TRUE(Append(engine, from, std::span(tokens).first(9), &expected).ok());
  for (int i = 0; i < 9; ++i) {
    std::vector<float> row;
    ASSERT_TRUE(Append(engine, to, std::span(tokens).subspan(std::size_t(i), 1), &row).ok());
    got.insert(got.end(), row.begin(), row.end());
  }
  EXPECT_TRUE(SameBits(expected, got));
}

TEST(LlamaEngine, BlocksMoveInEveryShape) {
  RandomModelOptions llama;
  RandomModelOptions one_head = llama;
  one_head.kv_heads = 1;
  one_head.layers = 5;
  RandomModelOptions biased = llama;
  biased.architecture = "qwen2";
  biased.key_bias = 50.0f;
  RandomModelOptions wide = llama;  // heads that do not divide the embedding
  wide.integers = {{"attention.key_length", 96}, {"attention.value_length", 96}, {"rope.dimension_count", 96}};
  for (bool unified : {false, true}) {
    for (const RandomModelOptions& model : {llama, one_head, biased, wide}) {
      auto engine = OpenRandom(model, 2, unified);
      ASSERT_TRUE(engine.ok()) << model.architecture << ": " << engine.status().ToString();
      CheckMove(**engine, model.architecture + (unified ? " unified" : ""));
    }
  }
}

// MLA: one row of compressed K per token, no V at all.
TEST(LlamaEngine, ACacheOfKeysOnlyMoves) {
  RandomModelOptions model;
  model.architecture = "deepseek2";
  model.kv_heads = 1;
  model.integers = {{"attention.q_lora_rank", 32},
                    {"attention.kv_lora_rank", 64},
                    {"attention.key_length", 96},
                    {"attention.value_length", 64},
                    {"attention.key_length_mla", 64},
                    {"attention.value_length_mla", 32},
                    {"rope.dimension_count", 32},
                    {"leading_dense_block_count", 2},
                    {"expert_feed_forward_length", 64},
                    {"expert_shared_count", 1},
                    {"expert_count", 2},
                    {"expert_used_count", 1}};
  auto engine = OpenRandom(model);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const LayerShape& layer = (*engine)->info().shape.layers.at(0);
  EXPECT_EQ(layer.kv_heads, 1);
  EXPECT_EQ(layer.key_dim, 96);
  EXPECT_EQ(layer.value_dim, 0);
  CheckMove(**engine, "deepseek2");
}

TEST(LlamaEngine, ShapesAndRotationsAreDescribed) {
  RandomModelOptions model;
  model.floats = {{"rope.freq_base", 5000.0f}};
  auto llama = OpenRandom(model);
  ASSERT_TRUE(llama.ok()) << llama.status().ToString();
  const LayerShape& layer = (*llama)->info().shape.layers.at(1);
  EXPECT_EQ((*llama)->info().shape.layers.size(), 2u);
  EXPECT_EQ(layer.kv_heads, 2);
  EXPECT_EQ(layer.key_dim, 32);
  EXPECT_EQ(layer.value_dim, 32);
  EXPECT_EQ(layer.rope.pairing, RopePairing::kNorm);
  EXPECT_EQ(layer.rope.dims, 32);
  ASSERT_EQ(layer.rope.radians_per_token.size(), 16u);
  EXPECT_FLOAT_EQ(layer.rope.radians_per_token[3], float(std::pow(5000.0, -6.0 / 32)));
  EXPECT_EQ((*llama)->info().model, "random");

  model.architecture = "qwen2";
  model.strings = {{"rope.scaling.type", "linear"}};
  model.floats = {{"rope.scaling.factor", 4.0f}};
  auto linear = OpenRandom(model);
  ASSERT_TRUE(linear.ok()) << linear.status().ToString();
  EXPECT_EQ((*linear)->info().shape.layers[0].rope.pairing, RopePairing::kNeox);
  EXPECT_FLOAT_EQ((*linear)->info().shape.layers[0].rope.radians_per_token[0], 0.25f);

  model.strings = {{"rope.scaling.type", "yarn"}};
  auto yarn = OpenRandom(model);
  ASSERT_TRUE(yarn.ok()) << yarn.status().ToString();
  EXPECT_EQ((*yarn)->info().shape.layers[0].rope.pairing, RopePairing::kNone);
}

TEST(LlamaEngine, RandomScheduleEqualsSoloRuns) {
  constexpr int kSequences = 3;
  for (bool unified : {false, true}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + (unified ? " unified" : ""));
      auto opened = OpenRandom({}, kSequences, unified, 256);
      auto reference = OpenRandom({}, 1, false, 256);
      ASSERT_TRUE(opened.ok() && reference.ok());
      Engine& engine = **opened;
      Engine& solo = **reference;
      const SequenceId alone = *solo.Open();
      std::vector<std::vector<Token>> texts(kSequences);
      for (int i = 0; i < kSequences; ++i) ASSERT_EQ(*engine.Open(), i);
      Random random(seed);
      for (int action = 0; action < 40; ++action) {
        const int which = int(random.Below(kSequences));
        std::vector<Token>& text = texts[which];
        const int kind = int(random.Below(4));
        if (kind == 0) {
          text.resize(random.Below(text.size() + 1));
          ASSERT_TRUE(engine.Truncate(which, int(text.size())).ok());
        } else if (kind == 1 && !text.empty()) {  // rewrite a part with what it is
          const int first = int(random.Below(text.size()));
          CacheBlock block(engine.info().shape, first, 1 + int(random.Below(text.size() - std::size_t(first))));
          ASSERT_TRUE(engine.ReadBlock(which, &block).ok());
          ASSERT_TRUE(engine.WriteBlock(which, block).ok());
        } else {
          const auto more = RandomTokens(1 + int(random.Below(12)), random.Next(), 128);
          if (text.size() + more.size() > 256) continue;
          std::vector<float> logits, expected;
          ASSERT_TRUE(Append(engine, which, more, &logits).ok());
          ASSERT_TRUE(solo.Truncate(alone, 0).ok());
          ASSERT_TRUE(text.empty() || Append(solo, alone, text, nullptr).ok());
          ASSERT_TRUE(Append(solo, alone, more, &expected).ok());
          ASSERT_TRUE(SameBits(logits, expected)) << "action " << action;
          text.insert(text.end(), more.begin(), more.end());
        }
        ASSERT_EQ(engine.Length(which), int(text.size()));
      }
    }
  }
}

TEST(LlamaEngine, ModelsWithoutTokenizerOrTemplateSaySo) {
  auto engine = OpenRandom({});
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_EQ((*engine)->Tokenize("text", true).status().code(), ErrorCode::kUnsupported);
  EXPECT_EQ((*engine)->ChatPrompt({{"user", "text"}}).status().code(), ErrorCode::kUnsupported);
  EXPECT_EQ((*engine)->TokenText(5), "");
}

TEST(LlamaEngine, ArchitecturesItCannotCarryAreRefusedByName) {
  RandomModelOptions mamba;
  mamba.architecture = "mamba";
  mamba.integers = {{"ssm.conv_kernel", 4}, {"ssm.inner_size", 256}, {"ssm.state_size", 16}, {"ssm.time_step_rank", 8}};
  RandomModelOptions window;
  window.architecture = "gemma2";
  window.integers = {{"attention.sliding_window", 64}, {"attention.key_length", 32}, {"attention.value_length", 32}};
  for (const RandomModelOptions& model : {mamba, window}) {
    const auto engine = OpenRandom(model);
    ASSERT_FALSE(engine.ok()) << model.architecture;
    EXPECT_EQ(engine.status().code(), ErrorCode::kUnsupported) << engine.status().ToString();
    EXPECT_THAT(engine.status().message(), HasSubstr("'" + model.architecture + "'"));
  }
}

}  // namespace
}  // namespace lynx
