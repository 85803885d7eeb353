// Calibration: what the `lynx` codec's encoder should know about a model, from one text.
#pragma once

#include <span>

#include "eval/sensitivity.h"
#include "lynx/codec.h"
#include "lynx/engine.h"

namespace lynx {

// Tokens behind the whole pages that a measurement feeds.
inline constexpr int kCalibrateNextTokens = 64;

struct CalibrateOptions {
  bool measure = true;  // correct what attention says by what the output does; minutes
  CalibrateProgress progress;
};

// Feeds the whole pages of the tokens (about 2,000 are enough; at most the context) to a sequence of its own and looks
// at what attention does with an error that every token has independently. V counts as the squares of attention weights
// and the output projection's columns make of it; K as the queries that meet it (per RoPE pair), times how far the
// values that attention then mixes are from their mean. Both relative to the residual stream, averaged over the query
// heads of a KV head. Then the weights of each layer's K and V are corrected by measurement. kUnsupported when the
// engine can't show its attention, kInvalid for less than two pages of tokens.
Result<Profile> Calibrate(Engine* engine, std::span<const Token> tokens, const CalibrateOptions& options);

}  // namespace lynx
