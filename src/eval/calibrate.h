// Calibration: what the `lynx` codec's encoder should know about a model, from one text.
#pragma once

#include <span>

#include "lynx/codec.h"
#include "lynx/engine.h"

namespace lynx {

// Feeds the tokens (about 2,000 are enough; fewer than the context) to a sequence of its own and looks at what
// attention uses: errors in K weigh as the queries that meet them (per RoPE pair, averaged over the query heads of a KV
// head), errors in V as what the output projection makes of them, relative to the residual stream. kUnsupported when
// the engine can't show that, kInvalid for less than one page of tokens.
Result<Profile> Calibrate(Engine* engine, std::span<const Token> tokens);

}  // namespace lynx
