// Filters and coupled sampling. Every filter keeps a prefix of the order (logit descending, id ascending); it is enough
// to find its last token, so nothing is sorted in full. Sums run in order of id: their bits do not depend on a sort.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/portable_math.h"
#include "base/random.h"
#include "lynx/speculate.h"

namespace lynx {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr double kLn2 = 0x1.62e42fefa39efp-1;

struct Candidate {
  float logit = 0;
  Token id = 0;
};

bool Before(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// NaN as -inf, +inf as the largest float.
float Clean(float logit) { return logit > kLowest ? std::min(logit, std::numeric_limits<float>::max()) : kLowest; }

// Lowest id of the largest logit. Sixteen running maxima let the compiler use vectors; `>` is false for NaN.
Token Greedy(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kLowest);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
    }
  }
  float best = kLowest;
  for (float lane : lanes) best = std::max(best, lane);
  for (; i < logits.size(); ++i) best = logits[i] > best ? logits[i] : best;
  const auto first = std::find(logits.begin(), logits.end(), best);
  return best == kLowest ? 0 : Token(first - logits.begin());
}

bool Filters(const SamplingOptions& options, std::size_t vocabulary) {
  return (options.top_k > 0 && std::size_t(options.top_k) < vocabulary) || options.top_p < 1.0f || options.min_p > 0.0f;
}

// Drops what comes after `last` in that order; what stays keeps its place.
void CutAfter(const Candidate& last, std::vector<Candidate>* candidates) {
  std::erase_if(*candidates, [&last](const Candidate& candidate) { return Before(last, candidate); });
}

void CutTopK(std::int32_t top_k, std::vector<Candidate>* candidates) {
  if (top_k == 0 || std::size_t(top_k) >= candidates->size()) return;
  std::vector<Candidate> best(std::size_t(top_k), Candidate{});
  // A heap: nearly all candidates lose at their first comparison.
  std::partial_sort_copy(candidates->begin(), candidates->end(), best.begin(), best.end(), Before);
  CutAfter(best.back(), candidates);
}

// top-p: the shortest prefix whose probability (at temperature 1, among what top-k left) reaches top_p, the token that
// reaches it included. Sums by buckets of the distance from the largest logit; only the bucket in which the sum gets
// there is sorted.
void CutTopP(float top_p, float top, std::vector<Candidate>* candidates) {
  constexpr int kBuckets = 1024;
  constexpr double kBucketsPerUnit = 32;
  const auto bucket_of = [top](float logit) {
    return int(std::min((double(top) - logit) * kBucketsPerUnit, double(kBuckets - 1)));
  };
  const auto weight = [top](float logit) { return PortableExp(double(logit) - top); };
  std::array<double, kBuckets> mass{};
  for (const Candidate& candidate : *candidates) mass[bucket_of(candidate.logit)] += weight(candidate.logit);
  const double target = double(top_p) * std::accumulate(mass.begin(), mass.end(), 0.0);
  double sum = 0;
  int bucket = 0;
  while (bucket < kBuckets - 1 && sum + mass[bucket] < target) sum += mass[bucket++];

  std::vector<Candidate> order;
  for (const Candidate& candidate : *candidates) {
    if (bucket_of(candidate.logit) == bucket) order.push_back(candidate);
  }
  std::sort(order.begin(), order.end(), Before);
  for (const Candidate& candidate : order) {
    sum += weight(candidate.logit);
    if (sum >= target) return CutAfter(candidate, candidates);
  }
}

// What top-k, top-p and min-p keep, by id; empty when every logit is -inf. Tokens at -inf are never kept. `top` is the
// largest logit.
std::vector<Candidate> Keep(std::span<const float> logits, float top, const SamplingOptions& options) {
  // min-p keeps logits within log(min_p) of the largest, whatever the others cut; without top-p (whose sum needs all)
  // it can go first and leave little.
  const float least = options.min_p > 0 ? top + float(PortableLog(double(options.min_p))) : kLowest;
  const float early = options.top_p < 1.0f ? kLowest : least;
  std::vector<Candidate> kept;
  kept.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = Clean(logits[i]);
    if (logit > kLowest && logit >= early) kept.push_back({logit, Token(i)});
  }
  CutTopK(options.top_k, &kept);
  if (options.top_p < 1.0f) CutTopP(options.top_p, top, &kept);
  std::erase_if(kept, [least](const Candidate& candidate) { return candidate.logit < least; });
  return kept;
}

// The race: value logit / temperature + Gumbel noise, highest wins, ties by lowest id.
class Race {
 public:
  Race(const SamplingOptions& options, std::uint64_t index)
      : temperature_(options.temperature), key_(Mix64(Mix64(options.seed) + index)) {}

  // Noise is -log(-log u), u = ToUnit(bits). It is at most -log(1 - u) < (leading ones of bits + 1) ln 2 (since -log u
  // >= 1 - u), which settles all but a few tokens without a logarithm.
  void Enter(float logit, Token id) {
    const std::uint64_t bits = Mix64(key_ ^ std::uint64_t(std::uint32_t(id)));
    const double scaled = double(logit) / temperature_;
    if (scaled + (std::countl_one(bits) + 1) * kLn2 * (1 + 1e-9) < value_) return;
    const double value = scaled - PortableLog(-PortableLog(ToUnit(bits)));
    if (value > value_ || (value == value_ && id < winner_)) {
      value_ = value;
      winner_ = id;
    }
  }
  Token winner() const { return winner_; }

 private:
  double temperature_;
  std::uint64_t key_;
  double value_ = -std::numeric_limits<double>::infinity();
  Token winner_ = 0;
};

}  // namespace

Status CheckSampling(const SamplingOptions& options) {
  const auto bad = [](const char* what) { return Invalid(std::string("sampling: ") + what); };
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return bad("temperature must be 0 (greedy) or a positive number");
  }
  if (options.top_k < 0) return bad("top_k must be 0 (off) or positive");
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) return bad("top_p must be above 0 and at most 1 (off)");
  if (!(options.min_p >= 0.0f && options.min_p <= 1.0f)) return bad("min_p must be between 0 (off) and 1");
  if (options.method != SamplingMethod::kCoupled && options.method != SamplingMethod::kRejection) {
    return bad("method must be coupled or rejection");
  }
  return Ok();
}

Token SampleCoupled(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index) {
  LYNX_CHECK(!logits.empty());
  const Token greedy = Greedy(logits);
  if (options.temperature == 0.0f) return greedy;
  const float top = Clean(logits[std::size_t(greedy)]);
  Race race(options, index);
  if (Filters(options, logits.size())) {
    for (const Candidate& candidate : Keep(logits, top, options)) race.Enter(candidate.logit, candidate.id);
    return race.winner();
  }
  // The likeliest token first: most others then lose at once.
  if (top > kLowest) race.Enter(top, greedy);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = Clean(logits[i]);
    if (logit > kLowest) race.Enter(logit, Token(i));
  }
  return race.winner();
}

void TokenProbabilities(std::span<const float> logits, const SamplingOptions& options, std::span<float> probabilities) {
  LYNX_CHECK(!logits.empty() && probabilities.size() == logits.size());
  std::fill(probabilities.begin(), probabilities.end(), 0.0f);
  const Token greedy = Greedy(logits);
  const float top = Clean(logits[std::size_t(greedy)]);
  if (options.temperature == 0.0f || top == kLowest) {
    probabilities[std::size_t(greedy)] = 1.0f;
    return;
  }
  const auto weight = [&](float logit) { return PortableExp((double(logit) - top) / double(options.temperature)); };
  const std::vector<Candidate> kept = Keep(logits, top, options);
  double total = 0;
  for (const Candidate& candidate : kept) total += weight(candidate.logit);
  for (const Candidate& candidate : kept) {
    probabilities[std::size_t(candidate.id)] = float(weight(candidate.logit) / total);
  }
}

}  // namespace lynx
