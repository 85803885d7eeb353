// How the tokens of one request are chosen from logits, by either sampling method, in every phase.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "lynx/sampling.h"
#include "lynx/speculate.h"

namespace lynx {

// Token `index` when nothing was drafted: token 0 on the prefill node, plain decoding.
Token SampleToken(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index);

class TokenChooser {
 public:
  explicit TokenChooser(const SamplingOptions& options) : options_(options) {}

  Token Plain(std::span<const float> logits, int index) const { return SampleToken(logits, options_, index); }

  // A draft; for rejection sampling its distribution is remembered until it is judged for good.
  Token Draft(std::span<const float> logits, int index);

  // Judges the drafts of a Check by its rows of logits (check.feed.size() rows) from the cache of `stream`, as the
  // Speculator wants it. `end_of_text` of the result is left to the caller.
  Checked Judge(const Check& check, std::span<const float> rows, int stream);

 private:
  Checked JudgeCoupled(const Check& check, std::span<const float> rows, std::size_t vocab) const;
  Checked JudgeByRejection(const Check& check, std::span<const float> rows, std::size_t vocab, int stream);

  const SamplingOptions options_;
  std::map<int, std::vector<float>> draft_probabilities_;  // by index
};

}  // namespace lynx
