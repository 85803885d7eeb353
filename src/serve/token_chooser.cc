#include "serve/token_chooser.h"

#include "base/check.h"

namespace lynx {
namespace {

std::vector<float> Probabilities(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<float> probabilities(logits.size());
  TokenProbabilities(logits, options, probabilities);
  return probabilities;
}

}  // namespace

Token SampleToken(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index) {
  if (options.method == SamplingMethod::kCoupled) return SampleCoupled(logits, options, index);
  return SampleFrom(Probabilities(logits, options), options.seed, index);
}

Token TokenChooser::Draft(std::span<const float> logits, int index) {
  if (options_.method == SamplingMethod::kCoupled) return SampleCoupled(logits, options_, index);
  std::vector<float>& q = draft_probabilities_[index] = Probabilities(logits, options_);
  return SampleFrom(q, options_.seed, index);
}

Checked TokenChooser::Judge(const Check& check, std::span<const float> rows, int stream) {
  if (check.drafts.empty()) return {};
  LYNX_CHECK(rows.size() % check.feed.size() == 0);
  const std::size_t vocab = rows.size() / check.feed.size();
  return options_.method == SamplingMethod::kCoupled ? JudgeCoupled(check, rows, vocab)
                                                     : JudgeByRejection(check, rows, vocab, stream);
}

Checked TokenChooser::JudgeCoupled(const Check& check, std::span<const float> rows, std::size_t vocab) const {
  Checked checked;
  for (std::size_t row = 0; row < check.feed.size(); ++row) {
    const Token token = SampleCoupled(rows.subspan(row * vocab, vocab), options_, check.first_index + row);
    if (row < check.drafts.size() && token == check.drafts[row]) {
      ++checked.accepted;
      continue;
    }
    checked.has_replacement = true;
    checked.replacement = token;
    break;
  }
  return checked;
}

Checked TokenChooser::JudgeByRejection(const Check& check, std::span<const float> rows, std::size_t vocab, int stream) {
  Checked checked;
  for (std::size_t row = 0; row < check.feed.size(); ++row) {
    const int index = check.first_index + int(row);
    std::vector<float> p = Probabilities(rows.subspan(row * vocab, vocab), options_);
    if (row == check.drafts.size()) {  // the token after the last draft
      checked.has_replacement = true;
      checked.replacement = SampleFrom(p, options_.seed, index);
      draft_probabilities_[index] = std::move(p);
      break;
    }
    const RejectionOutcome outcome =
        VerifyByRejection(p, draft_probabilities_.at(index), check.drafts[row], options_.seed, index, stream);
    // What stands now is distributed as p: that is its q when a later stream judges it again.
    draft_probabilities_[index] = std::move(p);
    if (outcome.accepted) {
      ++checked.accepted;
      continue;
    }
    checked.has_replacement = true;
    checked.replacement = outcome.token;
    break;
  }
  return checked;
}

}  // namespace lynx
