// What prediction across layers and coded residuals would do to the rate of the `lynx` codec: its own levels, taken
// from its own encoder, at the cost of its own tables.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lynx/codec.h"
#include "lynx/page.h"
#include "prediction_kernel.h"

namespace lynx {

// One layer's K or V of a window as the codec quantized it: n = floor(16 e + 8) per coded token and channel, where e is
// the distance from the page's mean in steps; the anchor's level is n >> 4, the residual n & 15.
struct QuantizedRows {
  int channels = 0;
  int head_dim = 0;
  std::vector<int> page_tokens;      // coded tokens of each page
  std::vector<std::int32_t> nested;  // [coded token][channel]
  std::uint64_t stream0_bytes = 0;
  int tokens() const { return channels == 0 ? 0 : int(nested.size()) / channels; }
};

// A `lynx` codec whose kernels are watched while it encodes. One at a time.
class WatchedCodec {
 public:
  static Result<WatchedCodec> Make(const std::string& spec, const CacheShape& shape, const Profile* profile);
  // The block begins at position 0. kUnsupported when a page travels exactly.
  Result<QuantizedRows> Quantize(const CacheBlock& block, int layer, KvKind kind) const;
  const Codec& codec() const { return *codec_; }

 private:
  explicit WatchedCodec(std::unique_ptr<Codec> codec) : codec_(std::move(codec)) {}
  std::unique_ptr<Codec> codec_;
};

// Anchor levels of the rows side by side, as a predictor's input: [token][all channels], clipped to int8.
std::vector<std::int8_t> LevelsOf(const std::vector<const QuantizedRows*>& rows);

// Ridge regression of e on input levels, over the tokens of all windows: the k-th inputs belong to the k-th targets.
// Weights [input][output].
std::vector<double> FitWeights(const std::vector<std::vector<std::int8_t>>& inputs,
                               const std::vector<const QuantizedRows*>& targets);

// Bits of all elements of some rows.
struct RowBits {
  double levels = 0;  // what the anchor's symbols and their open bits take
  double residuals =
      0;  // what the four residual bits would take, given the level, by the density of the channel's class
};
// `quarters` [token][stride]: predictions in quarters of a level; null: none. Every page of a head is coded without
// them where that is shorter, and says so with a bit.
RowBits BitsOf(const QuantizedRows& rows, const std::int16_t* quarters, int stride);

// How often each residual follows a level in a channel of a class: what any static table could reach.
class ResidualCounts {
 public:
  void Add(const QuantizedRows& rows);
  double BitsPerElement() const;  // the conditional entropy

 private:
  static constexpr int kLevels = 17;  // the outermost: and all beyond
  std::vector<std::array<std::array<std::int64_t, 16>, kLevels>> counts_;
};

// True when the tables that are made here for phase 0 are the codec's own.
bool TablesAgree();

}  // namespace lynx
