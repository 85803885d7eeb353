// How much the model's output really changes when a part of its cache is quantized.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "codec/lynx_profile.h"
#include "lynx/engine.h"

namespace lynx {

// Called before every piece of work; an error ends all of it.
using CalibrateProgress = std::function<Status(std::string_view what, int done, int total)>;

// For every [2 * layer + kind] by how many octaves the profile's weights should grow, 0 on average: the K or V of one
// layer is replaced by its `lynx` anchor, the tokens behind the cache are fed, and the KL divergence of their
// distributions is compared with what the weights say of the error. The cache is what the sequence held after
// cache.token_count() tokens; the sequence is left with other contents. `next` is not empty.
Result<std::vector<double>> MeasureSensitivity(Engine* engine, SequenceId sequence, const CacheBlock& cache,
                                               std::span<const Token> next, const LynxProfile& profile,
                                               const CalibrateProgress& progress);

}  // namespace lynx
