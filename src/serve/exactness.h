// The proof of one run: a fresh sequence, filled in one write from the kept prefix and an independent decode of all
// received streams, must hold the same bytes as the refined cache and must decode, one token after the other, to the
// same tokens.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lynx/codec.h"
#include "lynx/engine.h"
#include "lynx/transfer.h"
#include "serve/kept_conversations.h"

namespace lynx {

struct Exactness {
  bool exact = false;
  std::string difference;  // empty if exact; otherwise where, with both sides
};

// `sequence` is the one that generated `tokens` (token 0 first) behind `prompt_tokens` cells, the first of them `kept`.
// Rejection sampling promises a distribution only: tokens are not compared then.
Result<Exactness> CheckExactness(Engine* engine, SequenceId sequence, const Codec& codec,
                                 const std::map<PageAddress, std::vector<SharedBytes>>& streams, int prompt_tokens,
                                 const std::vector<Token>& tokens, const SamplingOptions& sampling,
                                 const KeptPrefix& kept = {});

}  // namespace lynx
