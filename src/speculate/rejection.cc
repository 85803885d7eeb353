// Speculative rejection sampling: accept with min(1, p/q), otherwise sample from max(0, p - q).
#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "lynx/speculate.h"

namespace lynx {
namespace {

// Uniform numbers for the purposes that must be independent of one another. Any distinct values do.
constexpr std::uint64_t kSampleSalt = 0x73616d706c650000ull;
constexpr std::uint64_t kAcceptSalt = 0x6163636570740000ull;
constexpr std::uint64_t kReplaceSalt = 0x7265706c61630000ull;

// In (0, 1) with 52 bits, so that u < 1 and u * q < q hold exactly.
double Uniform(std::uint64_t seed, std::uint64_t index, std::uint64_t salt) {
  return ToUnit(Mix64(Mix64(Mix64(seed ^ Mix64(salt)) + index)));
}

// The token where the running sum of weights passes `unit` of their total; -1 when there is no weight.
template <typename Weight>
Token Pick(std::size_t count, double unit, Weight weight) {
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += weight(i);
  double sum = 0;
  Token last = -1;
  for (std::size_t i = 0; i < count; ++i) {
    const double here = weight(i);
    if (!(here > 0)) continue;
    last = Token(i);
    sum += here;
    if (sum > unit * total) break;
  }
  return last;
}

}  // namespace

Token SampleFrom(std::span<const float> probabilities, std::uint64_t seed, std::uint64_t index) {
  const double unit = Uniform(seed, index, kSampleSalt);
  return std::max(0, Pick(probabilities.size(), unit, [&](std::size_t i) { return double(probabilities[i]); }));
}

RejectionOutcome VerifyByRejection(std::span<const float> p, std::span<const float> q, Token draft, std::uint64_t seed,
                                   std::uint64_t index, int stream) {
  LYNX_CHECK(p.size() == q.size() && draft >= 0 && std::size_t(draft) < p.size());
  const auto slot = std::size_t(draft);
  const auto salt = std::uint64_t(std::uint32_t(stream));
  if (Uniform(seed, index, kAcceptSalt + salt) * q[slot] < p[slot]) return {true, draft};
  const double unit = Uniform(seed, index, kReplaceSalt + salt);
  const Token token = Pick(p.size(), unit, [&](std::size_t i) { return std::max(0.0, double(p[i]) - double(q[i])); });
  if (token >= 0) return {false, token};
  // p <= q everywhere yet a draft fell: the rows differ by rounding alone.
  return {false, std::max(0, Pick(p.size(), unit, [&](std::size_t i) { return double(p[i]); }))};
}

}  // namespace lynx
