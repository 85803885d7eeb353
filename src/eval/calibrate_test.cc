// Calibration on an engine that is made up: what goes in comes out as spreads, weights and corrections.
#include "eval/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/float16.h"
#include "base/random.h"
#include "codec/lynx_profile.h"

namespace lynx::testing {
namespace {

constexpr int kDim = 4;
constexpr int kQueryHeads = 4;
constexpr int kTokens = 1024;
constexpr int kLoudToken = 300;

// One layer, two KV heads, four query heads. K and V of head h are uniform on ±2^h (K before RoPE). Attention is all
// but uniform, unless a head stares at one token.
class MadeUpEngine : public Engine {
 public:
  MadeUpEngine() {
    RopeShape rope{RopePairing::kNorm, 0, 2, {0.7f}};
    info_.shape.layers = {{2, kDim, kDim, rope}};
    info_.max_tokens = 2048;
    info_.vocab_size = 2;
  }
  const EngineInfo& info() const override { return info_; }
  Result<std::vector<Token>> Tokenize(std::string_view, bool) const override { return std::vector<Token>(); }
  std::string TokenText(Token) const override { return ""; }
  bool IsEndOfText(Token) const override { return false; }
  Result<std::string> ChatPrompt(const std::vector<ChatMessage>&) const override { return Unsupported("made up"); }
  Result<SequenceId> Open() override { return ++open_; }
  void Close(SequenceId) override { --open_; }
  int Length(SequenceId) const override { return 0; }
  // Two logits per token, whose difference follows the first token of K after the sinks, and that of V.
  Status Step(std::span<const StepInput> inputs, std::vector<float>* logits) override {
    logits->clear();
    for (std::size_t i = 0; i < inputs[0].tokens.size(); ++i) {
      logits->push_back(0);
      logits->push_back(key_gain * written_[0][i] + value_gain * written_[1][i]);
    }
    return Ok();
  }
  Status Truncate(SequenceId, int) override { return Ok(); }
  Status CopyPrefix(SequenceId, SequenceId, int) override { return Ok(); }
  Status WriteBlock(SequenceId, const CacheBlock& block) override {
    for (int kind = 0; kind < 2; ++kind) {
      const auto rows = block.Rows(0, KvKind(kind));
      written_[kind].clear();
      for (std::size_t i = 0; i < std::size_t(kCalibrateNextTokens); ++i) {
        written_[kind].push_back(LoadElement(&rows[2 * (2 * kDim * (i + 8) + 3)], ElementType::kBf16));
      }
    }
    return Ok();
  }

  // Query head q has rms 2^(q / 2) / 1000 in channels 0 and 2, twice that in 1 and 3.
  Status Probe(const StepInput& input, std::vector<LayerProbe>* layers) override {
    if (!probes) return Unsupported("no probe");
    LayerProbe probe;
    probe.query_heads = kQueryHeads;
    probe.residual_rms = 0.5f;
    for (std::size_t token = 0; token < input.tokens.size(); ++token) {
      for (int head = 0; head < kQueryHeads; ++head) {
        for (int c = 0; c < kDim; ++c) {
          probe.queries.push_back((token % 2 == 0 ? 1.0f : -1.0f) * std::exp2(float(head / 2)) * float(1 + c % 2) /
                                  1000);
        }
        if (stares && head >= 2) probe.queries.back() = 1;
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
            if (stares && head == 1 && c == 3 && kind == KvKind::kKey) {
              row[c] = block->first_token() + token == kLoudToken ? 50.0f : 0.0f;
            }
            StoreElement(row[c], ElementType::kBf16, rows.data() + 2 * ((token * 2 + head) * kDim + c));
          }
        }
      }
    }
    return Ok();
  }

  bool probes = true;
  bool stares = false;
  float key_gain = 0, value_gain = 0;
  int open_ = 0;

 private:
  std::vector<float> written_[2];
  EngineInfo info_;
};

LynxProfile Calibrated(MadeUpEngine* engine, bool measure) {
  const std::vector<Token> tokens(kTokens + kCalibrateNextTokens);
  CalibrateOptions options;
  options.measure = measure;
  const auto profile = Calibrate(engine, tokens, options);
  EXPECT_TRUE(profile.ok()) << profile.status().ToString();
  EXPECT_EQ(engine->open_, 0);
  return ReadLynxProfile(*profile, engine->info().shape).value();
}

double Octaves(double value) { return 64 * std::log2(value); }

// The mean over calibration's queries of the sum of squared weights of uniform attention, without sinks and recent
// ones.
double UniformReach() {
  double sum = 0;
  int count = 0;
  for (int tokens = kTokens / 2 + 16; tokens <= kTokens; tokens += 16, ++count) {
    sum += double(tokens - 4 - 64) / (double(tokens) * tokens);
  }
  return sum / count;
}

TEST(Calibrate, SpreadsAndWeights) {
  MadeUpEngine engine;
  const LynxProfile rows = Calibrated(&engine, false);
  ASSERT_EQ(rows.size(), 2u);
  const double reach = std::sqrt(UniformReach());
  for (int head = 0; head < 2; ++head) {
    const double scale = std::exp2(head);
    const double norm = (head == 0 ? 1 : 4) / 0.5;  // over the residual stream
    for (int c = 0; c < kDim; ++c) {
      const LynxChannelProfile& key = rows[0][std::size_t(head * kDim + c)];
      const LynxChannelProfile& value = rows[1][std::size_t(head * kDim + c)];
      EXPECT_NEAR(key.spread, Octaves(scale / 2), 12) << head << " " << c;  // uniform on ±s: s / 2 from the mean
      EXPECT_NEAR(value.spread, Octaves(scale / 2), 12);
      // Channels 0 and 1 are a pair: sqrt((1 + 4) / 2); logits are over sqrt(4). Four channels, uniform on ±s: each has
      // the variance s^2 / 3.
      const double energy = (c < 2 ? std::sqrt(2.5) : (c == 2 ? 1 : 2)) * scale / 2000;
      EXPECT_NEAR(key.weight, Octaves(energy * norm * std::sqrt(4.0 / 3) * scale * reach), 8) << head << " " << c;
      EXPECT_NEAR(value.weight, Octaves(norm * reach), 2) << head << " " << c;
    }
  }
}

// A head that attends one token passes on its whole error; one that mixes all averages errors.
TEST(Calibrate, AttentionToOneToken) {
  MadeUpEngine engine;
  engine.stares = true;
  const LynxProfile rows = Calibrated(&engine, false);
  EXPECT_NEAR(rows[1][0].weight, Octaves(2 * std::sqrt(UniformReach())), 2);
  EXPECT_NEAR(rows[1][kDim].weight, Octaves(8), 2);
}

// What the output shows goes half way into all weights of a layer's K or V, and their mean stays.
TEST(Calibrate, Measured) {
  MadeUpEngine engine;
  const LynxProfile before = Calibrated(&engine, false);
  engine.key_gain = 1e-2f;
  engine.value_gain = 1e-2f;
  const LynxProfile after = Calibrated(&engine, true);
  engine.value_gain = 4e-2f;
  const LynxProfile louder = Calibrated(&engine, true);
  for (int part = 0; part < 2; ++part) {
    for (std::size_t c = 0; c < before[std::size_t(part)].size(); ++c) {
      const auto weight = [&](const LynxProfile& rows) { return rows[std::size_t(part)][c].weight; };
      EXPECT_EQ(weight(after) - before[std::size_t(part)][c].weight,
                after[std::size_t(part)][0].weight - before[std::size_t(part)][0].weight);
      // Four times the gain is two octaves of weight, of which one is believed, shared by both parts.
      EXPECT_NEAR(weight(louder) - weight(after), part == 0 ? -32 : 32, 8) << part << " " << c;
    }
  }
  const auto moved = [&](std::size_t part) { return after[part][0].weight - before[part][0].weight; };
  EXPECT_NEAR(moved(0) + moved(1), 0, 1);
}

TEST(Calibrate, WhatItCannotDo) {
  MadeUpEngine engine;
  const std::vector<Token> tokens(kTokens + kCalibrateNextTokens);
  CalibrateOptions options;
  EXPECT_EQ(Calibrate(&engine, std::span(tokens).first(575), options).status().code(), ErrorCode::kInvalid);
  std::string_view stop_at = "reading page";
  options.progress = [&](std::string_view what, int done, int total) {
    return what == stop_at && done == total - 1 ? IoError("stopped") : Ok();
  };
  EXPECT_EQ(Calibrate(&engine, tokens, options).status().message(), "stopped");
  stop_at = "measuring part";
  EXPECT_EQ(Calibrate(&engine, tokens, options).status().message(), "stopped");
  engine.probes = false;
  EXPECT_EQ(Calibrate(&engine, tokens, options).status().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(engine.open_, 0);
}

}  // namespace
}  // namespace lynx::testing
