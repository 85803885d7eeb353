#include "eval/quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "engine/toy/toy_engine.h"
#include "eval/attention.h"

namespace lynx {
namespace {

std::unique_ptr<Engine> Toy() {
  ToyOptions options;
  options.max_tokens = 400;
  options.end_of_text_bias = -100;  // the continuation does not end early
  return std::move(MakeToyEngine(options)).value();
}

std::vector<Token> Prompt(const Engine& engine, int tokens) {
  std::string text;
  for (int i = 0; i < tokens; ++i) text += char(' ' + (i * i + 3 * i) % 60);
  return *engine.Tokenize(text, false);
}

CodecQuality MeasureWith(const std::string& spec) {
  const auto engine = Toy();
  QualityMeter meter = *QualityMeter::Open(engine.get(), {.tokens = 16, .drafts = 16, .attention_rows = 0});
  const QualityWindow window = *meter.Capture(Prompt(*engine, 300));
  const auto codec = std::move(MakeCodec(spec, engine->info().shape)).value();
  return *meter.Measure(window, *codec);
}

TEST(QualityMeter, RawIsTheCacheItself) {
  const CodecQuality quality = MeasureWith("raw");
  EXPECT_EQ(quality.kl_full_bf16, 0.0);
  EXPECT_EQ(quality.top1_full_bf16, 1.0);
  EXPECT_EQ(quality.full.key, 0.0);
  EXPECT_EQ(quality.accepted, quality.drafted);
  EXPECT_GT(double(quality.stream_bytes.at(0)) * 8 / double(quality.elements), 16.0);
}

TEST(QualityMeter, MoreBitsAreNearer) {
  const CodecQuality nested = MeasureWith("nested");
  const CodecQuality int4 = MeasureWith("int4");
  const CodecQuality int8 = MeasureWith("int8");
  EXPECT_GT(nested.kl_anchor_bf16, nested.kl_full_bf16);
  EXPECT_GT(nested.anchor.key, 50 * nested.full.key);
  EXPECT_GT(int4.kl_full_bf16, int8.kl_full_bf16);
  EXPECT_GT(int4.full.value, 20 * int8.full.value);
  ASSERT_EQ(nested.stream_bytes.size(), 2u);
  EXPECT_LE(nested.accepted, nested.drafted);
  EXPECT_EQ(nested.anchor_layers.size(), 2u);
}

TEST(QualityMeter, TheNoiseFloorIsBelowACoarseCodec) {
  const auto engine = Toy();
  QualityMeter meter = *QualityMeter::Open(engine.get(), {.tokens = 16, .drafts = 4, .attention_rows = 0});
  const QualityWindow window = *meter.Capture(Prompt(*engine, 300));
  EXPECT_EQ(window.logits.size(), 16u * std::size_t(engine->info().vocab_size));
  EXPECT_EQ(window.continuation.size(), 17u);
  EXPECT_TRUE(window.probes.empty());  // the toy engine shows no queries
  EXPECT_LT(*meter.NoiseFloor(window, 1), MeasureWith("int4").kl_full_bf16);
}

TEST(Attend, WeighsValuesBySoftmax) {
  CacheShape shape;
  shape.element_type = ElementType::kF32;
  shape.layers = {{1, 2, 1, {}}};
  CacheBlock block(shape, 0, 2);
  const float keys[] = {1, 0, 0, 1};
  const float values[] = {10, 20};
  std::memcpy(block.Rows(0, KvKind::kKey).data(), keys, sizeof keys);
  std::memcpy(block.Rows(0, KvKind::kValue).data(), values, sizeof values);
  const float query[] = {std::sqrt(2.0f) * std::log(3.0f), 0};  // scores ln 3 and 0
  const std::vector<float> output = Attend(block, 0, query, 1);
  ASSERT_EQ(output.size(), 1u);
  EXPECT_NEAR(output[0], 0.75 * 10 + 0.25 * 20, 1e-4);
}

}  // namespace
}  // namespace lynx
