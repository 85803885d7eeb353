// The toy engine: a transformer of a few kB with weights from a seed, for tests that need an engine but no model. The
// same scalar operations in the same order on every machine; tokens are computed one after another, so batched steps
// equal single ones bit for bit.
#pragma once

#include <cstdint>
#include <memory>

#include "lynx/engine.h"

namespace lynx {

struct ToyOptions {
  std::uint64_t seed = 1;
  int layers = 2;
  int heads = 4;  // query heads; a multiple of kv_heads
  int kv_heads = 2;
  int head_dim = 8;  // even; all channels are rotated, pairing kNorm
  int vocab = 64;    // the last id is end of text
  int max_tokens = 512;
  int max_sequences = 4;
  int verify_batch = 16;
  ElementType element_type = ElementType::kBf16;  // of the cache: K and V are rounded when they are written
  bool key_only_last_layer = false;               // the last layer keeps K only and uses it as V
  float end_of_text_bias = 0.0f;                  // added to the logit of end of text
  std::int64_t step_delay_ns = 0;                 // slept per Step and token
};

// Text: printable ASCII from space on is one token per character, other bytes wrap around; end of text has no text.
// ChatPrompt gives what the messages say, a space between them. kInvalid for dimensions that are not positive or do not
// fit.
Result<std::unique_ptr<Engine>> MakeToyEngine(const ToyOptions& options);

}  // namespace lynx
