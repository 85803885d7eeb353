// Tokens and how they are chosen from logits: plain data that requests carry and both nodes share.
#pragma once

#include <cstdint>

namespace lynx {

using Token = std::int32_t;

enum class SamplingMethod : std::uint8_t {
  // The token is a pure function of (logits, seed, output index): drafts and verification share the noise.
  kCoupled = 0,
  // Speculative rejection sampling (paper eq. 10/11): the distribution is exact, single tokens are not.
  kRejection = 1,
};

// Applied in llama.cpp's order: top-k, top-p, min-p, temperature. temperature 0 is greedy (ties by lowest id).
struct SamplingOptions {
  float temperature = 0.0f;
  std::int32_t top_k = 0;  // 0: off
  float top_p = 1.0f;      // 1: off
  float min_p = 0.0f;      // 0: off
  std::uint64_t seed = 0;
  SamplingMethod method = SamplingMethod::kCoupled;
  bool operator==(const SamplingOptions&) const = default;
};

}  // namespace lynx
