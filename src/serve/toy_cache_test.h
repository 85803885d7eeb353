// For tests: prompts and caches of toy engines, encoded and decoded without any network.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "engine/toy/toy_engine.h"
#include "lynx/codec.h"
#include "lynx/engine.h"
#include "lynx/transfer.h"
#include "serve/token_chooser.h"

namespace lynx {

inline std::unique_ptr<Engine> MakeToy(const ToyOptions& options = {}) {
  auto engine = MakeToyEngine(options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  return std::move(engine).value();
}

inline std::vector<Token> RandomPrompt(int count, std::uint64_t seed, int vocab = 64) {
  Random random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = Token(random.Below(std::uint64_t(vocab - 1)));  // the last is end of text
  return tokens;
}

// Runs tokens; returns the logits after the last.
inline std::vector<float> RunTokens(Engine* engine, SequenceId sequence, std::span<const Token> tokens) {
  std::vector<float> logits;
  const StepInput input{sequence, tokens, Logits::kLast};
  const Status status = engine->Step({&input, 1}, &logits);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return logits;
}

inline CacheBlock ReadCache(Engine* engine, SequenceId sequence, int tokens) {
  CacheBlock block(engine->info().shape, 0, tokens);
  const Status status = engine->ReadBlock(sequence, &block);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return block;
}

inline bool SameBytes(const CacheBlock& a, const CacheBlock& b) {
  if (a.shape() != b.shape() || a.token_count() != b.token_count()) return false;
  for (int layer = 0; layer < int(a.shape().layers.size()); ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      if (!std::ranges::equal(a.Rows(layer, kind), b.Rows(layer, kind))) return false;
    }
  }
  return true;
}

// The cache of a prompt and what follows it, on a sequence that is closed again.
struct Prefilled {
  CacheBlock cache;
  std::vector<float> logits;
};
inline Prefilled Prefill(Engine* engine, std::span<const Token> prompt) {
  const SequenceId sequence = engine->Open().value();
  std::vector<float> logits = RunTokens(engine, sequence, prompt);
  Prefilled result{ReadCache(engine, sequence, int(prompt.size())), std::move(logits)};
  engine->Close(sequence);
  return result;
}

inline PageShape DimsOf(const CacheShape& shape, const PageAddress& address) {
  return {address.kind, address.head_count, shape.layers[address.layer].HeadDim(address.kind), address.token_count};
}

using EncodedCache = std::map<PageAddress, std::vector<SharedBytes>>;  // by page, stream 0 first

inline EncodedCache EncodeCache(const Codec& codec, const CacheBlock& block) {
  const CodecInfo& info = codec.info();
  EncodedCache encoded;
  for (const PageAddress& address :
       PagesOf(block.shape(), 0, block.token_count(), info.page_tokens, info.heads_per_page)) {
    const PageShape dims = DimsOf(block.shape(), address);
    std::vector<std::shared_ptr<std::vector<std::byte>>> outputs;
    std::vector<std::span<std::byte>> buffers;
    for (int stream = 0; stream < info.stream_count; ++stream) {
      outputs.push_back(std::make_shared<std::vector<std::byte>>(codec.MaxBytes(dims, stream)));
      buffers.emplace_back(*outputs.back());
    }
    std::vector<std::size_t> sizes(info.stream_count);
    std::vector<std::byte> scratch(codec.ScratchBytes(dims));
    PageView page = block.Page(address).value();
    page.tokens_after = block.token_count() - address.first_token - address.token_count;
    const Status status = codec.Encode(page, buffers, sizes, scratch);
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (int stream = 0; stream < info.stream_count; ++stream) {
      outputs[stream]->resize(sizes[stream]);
      encoded[address].push_back(outputs[stream]);
    }
  }
  return encoded;
}

// The cache that streams 0…last give.
inline CacheBlock DecodeCache(const Codec& codec, const EncodedCache& encoded, const CacheShape& shape, int tokens,
                              int last) {
  CacheBlock block(shape, 0, tokens);
  for (const auto& [address, streams] : encoded) {
    std::vector<std::span<const std::byte>> prefix;
    for (int stream = 0; stream <= last; ++stream) prefix.emplace_back(*streams[stream]);
    std::vector<std::byte> scratch(codec.ScratchBytes(DimsOf(shape, address)));
    const Status status = codec.Decode(prefix, block.Page(address).value(), scratch);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return block;
}

// Token 0 and what plain decoding on the cache gives, up to `count` tokens or end of text.
inline std::vector<Token> DecodePlainly(Engine* engine, const CacheBlock& cache, Token token0, int count,
                                        const SamplingOptions& sampling) {
  const SequenceId sequence = engine->Open().value();
  EXPECT_TRUE(engine->WriteBlock(sequence, cache).ok());
  std::vector<Token> tokens{token0};
  while (int(tokens.size()) < count && !engine->IsEndOfText(tokens.back())) {
    const std::vector<float> logits = RunTokens(engine, sequence, std::span(&tokens.back(), 1));
    tokens.push_back(SampleToken(logits, sampling, tokens.size()));
  }
  engine->Close(sequence);
  return tokens;
}

inline SamplingOptions Coupled(float temperature, std::uint64_t seed) {
  SamplingOptions sampling;
  sampling.temperature = temperature;
  sampling.seed = seed;
  return sampling;
}

}  // namespace lynx
