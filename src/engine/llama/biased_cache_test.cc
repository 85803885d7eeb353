// Caches whose K has a constant offset far beyond its range (Qwen's K bias), through every codec: decoding on what
// comes back is decoding on the cache itself, nearly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/float16.h"
#include "codec/catalog.h"
#include "engine/llama/llama_runtime.h"
#include "engine/llama/random_model_test.h"

namespace lynx {
namespace {

constexpr int kPrompt = 300, kContinuation = 24;

std::unique_ptr<Engine> OpenBiased(float key_bias) {
  const LlamaLog silent({});
  RandomModelOptions model;
  model.architecture = "qwen2";
  model.embedding = 64;
  model.heads = 2;
  model.kv_heads = 2;
  model.key_bias = key_bias;
  GgufModel gguf = MakeRandomModel(model);
  LlamaOptions options;
  options.max_tokens = 512;
  options.max_sequences = 2;
  options.prefill_batch = 64;
  auto engine = LlamaRuntime::Open(std::move(gguf), options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

std::vector<Token> RandomTokens(int count, int vocabulary) {
  Random random(7);
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(Token(random.Below(std::uint64_t(vocabulary))));
  return tokens;
}

// What decoding on a cache gives: log probabilities of each continuation token's successors.
class BiasedCache : public ::testing::Test {
 protected:
  void Open(float key_bias) {
    engine_ = OpenBiased(key_bias);
    tokens_ = RandomTokens(kPrompt + kContinuation, engine_->info().vocab_size);
    const SequenceId sequence = engine_->Open().value();
    const StepInput prompt{sequence, std::span(tokens_).first(kPrompt), Logits::kNone};
    ASSERT_TRUE(engine_->Step(std::span(&prompt, 1), nullptr).ok());
    cache_ = std::make_unique<CacheBlock>(engine_->info().shape, 0, kPrompt);
    ASSERT_TRUE(engine_->ReadBlock(sequence, cache_.get()).ok());
    engine_->Close(sequence);
    expected_ = Continue(*cache_);
  }

  std::vector<double> Continue(const CacheBlock& cache) {
    const SequenceId sequence = engine_->Open().value();
    EXPECT_TRUE(engine_->WriteBlock(sequence, cache).ok());
    std::vector<float> logits;
    const StepInput step{sequence, std::span(tokens_).subspan(kPrompt), Logits::kAll};
    EXPECT_TRUE(engine_->Step(std::span(&step, 1), &logits).ok());
    engine_->Close(sequence);
    std::vector<double> log_probabilities;
    const auto vocabulary = std::size_t(engine_->info().vocab_size);
    for (std::size_t row = 0; row < logits.size(); row += vocabulary) {
      double sum = 0;
      for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(double(logits[row + i]));
      for (std::size_t i = 0; i < vocabulary; ++i) log_probabilities.push_back(logits[row + i] - std::log(sum));
    }
    return log_probabilities;
  }

  // From the first `count` streams of every page, or all (0).
  CacheBlock Through(const std::string& spec, std::size_t count) {
    const auto codec = MakeCodec(spec, cache_->shape()).value();
    CacheBlock decoded(cache_->shape(), 0, kPrompt);
    const CodecInfo& info = codec->info();
    for (const PageAddress& address : PagesOf(cache_->shape(), 0, kPrompt, info.page_tokens, info.heads_per_page)) {
      PageView page = std::as_const(*cache_).Page(address).value();
      page.tokens_after = kPrompt - address.first_token - address.token_count;
      const PageShape shape = ShapeOf(cache_->shape(), address);
      std::vector<std::vector<std::byte>> streams;
      for (int k = 0; k < info.stream_count; ++k) streams.emplace_back(codec->MaxBytes(shape, k));
      const std::vector<std::span<std::byte>> buffers(streams.begin(), streams.end());
      std::vector<std::size_t> sizes(streams.size());
      std::vector<std::byte> scratch(codec->ScratchBytes(shape));
      EXPECT_TRUE(codec->Encode(page, buffers, sizes, scratch).ok());
      std::vector<std::span<const std::byte>> prefix;
      for (std::size_t k = 0; k < (count == 0 ? sizes.size() : count); ++k) {
        prefix.push_back(std::span<const std::byte>(streams[k]).first(sizes[k]));
      }
      EXPECT_TRUE(codec->Decode(prefix, decoded.Page(address).value(), scratch).ok());
    }
    return decoded;
  }

  // Mean KL divergence in nats of decoding on `cache` from decoding on the engine's own.
  double Kl(const CacheBlock& cache) {
    const auto got = Continue(cache);
    double sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) sum += std::exp(expected_[i]) * (expected_[i] - got[i]);
    return sum / kContinuation;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<Token> tokens_;
  std::unique_ptr<CacheBlock> cache_;
  std::vector<double> expected_;
};

// The greatest offset of a K channel in ranges: of one that RoPE hardly turns.
double OffsetInRanges(const CacheBlock& cache) {
  const auto rows = cache.Rows(0, KvKind::kKey);
  const std::size_t channels = rows.size() / 2 / kPrompt;
  double greatest_ratio = 0;
  for (std::size_t c = 0; c < channels; ++c) {
    float least = INFINITY, greatest = -INFINITY;
    for (std::size_t token = 0; token < kPrompt; ++token) {
      const float value = LoadElement(rows.data() + 2 * (token * channels + c), cache.shape().element_type);
      least = std::min(least, value), greatest = std::max(greatest, value);
    }
    greatest_ratio = std::max(greatest_ratio, std::fabs(double(least) + greatest) / 2 / (double(greatest) - least));
  }
  return greatest_ratio;
}

TEST_F(BiasedCache, A9DecodingOnEveryCodecIsNearDecodingOnTheCache) {
  for (float bias : {0.0f, 5.0f, 50.0f}) {
    SCOPED_TRACE("bias " + std::to_string(bias));
    ASSERT_NO_FATAL_FAILURE(Open(bias));
    if (bias == 50.0f) {
      EXPECT_GT(OffsetInRanges(*cache_), 4);
    }
    EXPECT_EQ(Kl(*cache_), 0);
    const double int8 = Kl(Through("int8", 0));
    EXPECT_LT(int8, 4e-3);
    for (const std::string& name : CodecNames()) {
      EXPECT_LT(Kl(Through(name, 1)), 0.5) << name;
      EXPECT_LT(Kl(Through(name, 0)), name == "int4" ? 0.5 : 1e-2) << name;
    }
    // In about as many bits as int8, and nearer where the offset is large. (The prompt is short: by default `lynx`
    // spends its anchor on recent tokens.)
    for (const char* name : {"nested", "lynx:anchor_bits=4"}) {
      EXPECT_LT(Kl(Through(name, 0)), bias == 50.0f ? 0.75 * int8 : 1e-3) << name;
    }
  }
}

}  // namespace
}  // namespace lynx
