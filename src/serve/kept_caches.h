// The caches of recent prompts on a prefill node: the same prompt, or one with the same beginning, is not read again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lynx/engine.h"

namespace lynx {

// How many tokens are the same from the beginning on.
int CommonPrefix(std::span<const Token> a, std::span<const Token> b);

class KeptCaches {
 public:
  // At most `max_kept` caches stay; the engine must have at least max_kept + 1 sequences.
  KeptCaches(Engine* engine, int max_kept) : engine_(engine), max_kept_(max_kept) {}
  // Closes the sequences of what is kept.
  ~KeptCaches() {
    while (ForgetOne()) continue;
  }
  KeptCaches(const KeptCaches&) = delete;
  KeptCaches& operator=(const KeptCaches&) = delete;

  // A sequence that already holds the first `reused` tokens of a prompt. If that is all of it, `logits` is what
  // follows.
  struct Lease {
    SequenceId sequence = 0;
    int reused = 0;
    std::vector<float> logits;
  };

  // `reuse` false: an empty sequence. Forgets old caches when the engine has no sequence left.
  Result<Lease> Take(std::span<const Token> prompt, bool reuse);
  // The lease's sequence now holds exactly `prompt`, followed by `logits`.
  void Keep(SequenceId sequence, std::span<const Token> prompt, std::vector<float> logits);
  // The lease's sequence is of no use (the request failed).
  void Drop(SequenceId sequence) { engine_->Close(sequence); }
  // Forgets the least recently used cache; false when there is none.
  bool ForgetOne();

  int count() const { return int(kept_.size()); }

 private:
  struct Kept {
    SequenceId sequence = 0;
    std::vector<Token> tokens;
    std::vector<float> logits;
  };

  Engine* engine_;
  int max_kept_;
  std::vector<Kept> kept_;  // least recently used first
};

}  // namespace lynx
