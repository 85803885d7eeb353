// Calibration on an engine that is made up: what goes in comes out as spreads and weights.
#include "eval/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/float16.h"
#include "base/random.h"
#include "codec/lynx_profile.h"

namespace lynx::testing {
namespace {

constexpr int kDim = 4;
constexpr int kQueryHeads = 4;

// One layer, two KV heads, four query heads. K and V of head h are uniform on ±2^h (K before RoPE).
class MadeUpEngine : public Engine {
 public:
  MadeUpEngine() {
    RopeShape rope{RopePairing::kNorm, 0, 2, {0.7f}};
    info_.shape.layers = {{2, kDim, kDim, rope}};
    info_.max_tokens = 2048;
  }
  const EngineInfo& info() const override { return info_; }
  Result<std::vector<Token>> Tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  std::string TokenText(Token) const override { return ""; }
  bool IsEndOfText(Token) const override { return false; }
  Result<std::string> ChatPrompt(std::string_view) const override { return Unsupported("made up"); }
  Result<SequenceId> Open() override { return ++open_; }
  void Close(SequenceId) override { --open_; }
  int Length(SequenceId) const override { return 0; }
  Status Step(std::span<const StepInput>, std::vector<float>*) override { return Ok(); }
  Status Truncate(SequenceId, int) override { return Ok(); }
  Status CopyPrefix(SequenceId, SequenceId, int) override { return Ok(); }
  Status WriteBlock(SequenceId, const CacheBlock&) override { return Ok(); }

  // Query head q has rms 2^(q / 2) in channels 0 and 2, twice that in 1 and 3.
  Status Probe(const StepInput& input, std::vector<LayerProbe>* layers) override {
    if (!probes) return Unsupported("no probe");
    LayerProbe probe;
    probe.query_heads = kQueryHeads;
    probe.residual_rms = 0.5f;
    for (std::size_t token = 0; token < input.tokens.size(); ++token) {
      for (int head = 0; head < kQueryHeads; ++head) {
        for (int c = 0; c < kDim; ++c) {
          probe.queries.push_back((token % 2 == 0 ? 1.0f : -1.0f) * std::exp2(float(head / 2)) * float(1 + c % 2));
        }
      }
    }
    for (int head = 0; head < kQueryHeads; ++head) {
      for (int c = 0; c < kDim; ++c) probe.output_norms.push_back(head < 2 ? 1.0f : 4.0f);
    }
    layers->assign(1, probe);
    return Ok();
  }
  Status ReadBlock(SequenceId, CacheBlock* block) override {
    Random random(1);
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = block->Rows(0, kind);
      for (int token = 0; token < block->token_count(); ++token) {
        for (int head = 0; head < 2; ++head) {
          float row[kDim];
          for (float& value : row) value = float(random.Unit() * 2 - 1) * std::exp2(float(head));
          if (kind == KvKind::kKey) {
            row[0] += 8;  // turns with the position
            const float angle = 0.7f * float(block->first_token() + token), x = row[0], y = row[1];
            row[0] = x * std::cos(angle) - y * std::sin(angle);
            row[1] = x * std::sin(angle) + y * std::cos(angle);
          }
          for (int c = 0; c < kDim; ++c) {
            StoreElement(row[c], ElementType::kBf16, rows.data() + 2 * ((token * 2 + head) * kDim + c));
          }
        }
      }
    }
    return Ok();
  }

  bool probes = true;
  int open_ = 0;

 private:
  EngineInfo info_;
};

TEST(Calibrate, SpreadsAndWeights) {
  MadeUpEngine engine;
  const std::vector<Token> tokens(1024);
  const auto profile = Calibrate(&engine, tokens);
  ASSERT_TRUE(profile.ok()) << profile.status().ToString();
  EXPECT_EQ(engine.open_, 0);
  const LynxProfile rows = ReadLynxProfile(*profile, engine.info().shape).value();
  ASSERT_EQ(rows.size(), 2u);
  const auto octaves = [](double value) { return 64 * std::log2(value); };
  for (int head = 0; head < 2; ++head) {
    const double scale = std::exp2(head);
    for (int c = 0; c < kDim; ++c) {
      const LynxChannelProfile& key = rows[0][std::size_t(head * kDim + c)];
      const LynxChannelProfile& value = rows[1][std::size_t(head * kDim + c)];
      EXPECT_NEAR(key.spread, octaves(scale / 2), 12) << head << " " << c;  // uniform on ±s: s / 2 from the mean
      EXPECT_NEAR(value.spread, octaves(scale / 2), 12);
      // Channels 0 and 1 are a pair: sqrt((1 + 4) / 2); logits are over sqrt(4).
      const double energy = c < 2 ? std::sqrt(2.5) : (c == 2 ? 1 : 2);
      EXPECT_NEAR(key.weight, octaves(energy * scale / 2), 1);
      EXPECT_NEAR(value.weight, octaves((head == 0 ? 1 : 4) / 0.5), 1);
    }
  }
}

TEST(Calibrate, WhatItCannotDo) {
  MadeUpEngine engine;
  const std::vector<Token> tokens(1024);
  EXPECT_EQ(Calibrate(&engine, std::span(tokens).first(500)).status().code(), ErrorCode::kInvalid);
  engine.probes = false;
  EXPECT_EQ(Calibrate(&engine, tokens).status().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(engine.open_, 0);
}

}  // namespace
}  // namespace lynx::testing
