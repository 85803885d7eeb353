#include "serve/kept_caches.h"

#include <algorithm>

#include "base/status_macros.h"

namespace lynx {

int CommonPrefix(std::span<const Token> a, std::span<const Token> b) {
  return int(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

bool KeptCaches::ForgetOne() {
  if (kept_.empty()) return false;
  engine_->Close(kept_.front().sequence);
  kept_.erase(kept_.begin());
  return true;
}

Result<KeptCaches::Lease> KeptCaches::Take(std::span<const Token> prompt, bool reuse) {
  auto best = kept_.end();
  int best_length = 0;
  for (auto kept = kept_.begin(); reuse && kept != kept_.end(); ++kept) {
    const int length = CommonPrefix(kept->tokens, prompt);
    if (length >= best_length && length > 0) best = kept, best_length = length;
  }
  if (best != kept_.end() &&
      best_length == int(best->tokens.size())) {  // the prompt begins with all of it: go on in place
    Lease lease{best->sequence, best_length, {}};
    if (best_length == int(prompt.size())) lease.logits = std::move(best->logits);
    kept_.erase(best);
    return lease;
  }
  bool has_source = best != kept_.end();
  if (has_source) std::rotate(best, best + 1, kept_.end());  // the most recently used: the last to be forgotten
  Result<SequenceId> sequence = engine_->Open();
  while (!sequence.ok() && ForgetOne()) sequence = engine_->Open();
  LYNX_RETURN_IF_ERROR(sequence.status());
  has_source = has_source && !kept_.empty();
  Lease lease{*sequence, 0, {}};
  // The last token is always run, for its logits.
  const int length = std::min(best_length, int(prompt.size()) - 1);
  if (has_source && length > 0 && engine_->CopyPrefix(kept_.back().sequence, lease.sequence, length).ok()) {
    lease.reused = length;
  }
  return lease;
}

void KeptCaches::Keep(SequenceId sequence, std::span<const Token> prompt, std::vector<float> logits) {
  kept_.push_back({sequence, {prompt.begin(), prompt.end()}, std::move(logits)});
  while (int(kept_.size()) > max_kept_) ForgetOne();
}

}  // namespace lynx
