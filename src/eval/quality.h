// The yardstick of codecs: a real cache is encoded, decoded and put back, and what the model then says is compared with
// what it says on the cache itself. docs/measuring.md explains every figure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lynx/codec.h"
#include "lynx/engine.h"

namespace lynx {

struct QualityOptions {
  int tokens = 64;         // teacher-forced on the greedy continuation of the BF16 cache
  int drafts = 64;         // drafted on stream 0 and verified on all streams
  int attention_rows = 8;  // of the teacher-forced tokens, for the error of attention output; 0: none
};

// One text window: its cache as the engine computed it, and the continuation that every codec is judged on.
struct QualityWindow {
  std::vector<Token> prompt;
  CacheBlock cache;
  std::vector<Token> continuation;  // tokens 0…tokens; the first `tokens` are fed
  std::vector<float> logits;        // [row][vocab]: row i follows continuation[i]
  std::vector<LayerProbe> probes;   // of the fed tokens; empty when the engine can't tell
};

// Relative squared error: sum |x - y|^2 / sum |x|^2.
struct CacheError {
  double key = 0;
  double value = 0;
  double attention = 0;  // of attention output; 0 when not measured
};

struct CodecQuality {
  std::string codec;  // canonical spec
  std::vector<std::uint64_t> stream_bytes;
  std::int64_t elements = 0;
  CacheError anchor, full;  // of stream 0 alone, of all streams
  std::vector<CacheError> anchor_layers, full_layers;
  double kl_anchor_full = 0, kl_full_bf16 = 0, kl_anchor_bf16 = 0;  // KL(second || first)
  double top1_anchor_full = 1, top1_full_bf16 = 1, top1_anchor_bf16 = 1;
  int drafted = 0;
  int accepted = 0;
  double encode_s = 0;
  double decode_s = 0;  // of all streams
};

// Rows of logits behind every token of `feed`, when the sequence holds the block and nothing else before.
Result<std::vector<float>> TeacherForce(Engine* engine, SequenceId sequence, const CacheBlock& block,
                                        std::span<const Token> feed);

class QualityMeter {
 public:
  // The engine has a free sequence and must outlive the meter.
  static Result<QualityMeter> Open(Engine* engine, const QualityOptions& options);

  // Prefills the prompt and continues greedily.
  Result<QualityWindow> Capture(std::vector<Token> prompt);
  Result<CodecQuality> Measure(const QualityWindow& window, const Codec& codec);
  // KL of the BF16 cache with the last bit flipped in one of 10^5 elements: below this nothing can be told apart.
  Result<double> NoiseFloor(const QualityWindow& window, std::uint64_t seed);

 private:
  QualityMeter(Engine* engine, const QualityOptions& options, SequenceId sequence)
      : engine_(engine), options_(options), sequence_(sequence) {}
  // Greedy tokens on the block after token 0, at most `count`, ending with the first end of text.
  Result<std::vector<Token>> Draft(const CacheBlock& block, Token token0, int count);
  Status MeasureDrafts(const QualityWindow& window, const CacheBlock& anchor, const CacheBlock& full,
                       CodecQuality* quality);

  Engine* engine_;
  QualityOptions options_;
  SequenceId sequence_;
};

}  // namespace lynx
