// Whether drafts pay: what steps cost and how many drafts stand, both as measured.
#pragma once

#include <cstdint>

namespace lynx {

// The time of a step of the engine, fixed_s + per_token_s * tokens, fitted to recent steps. With steps of one size only
// the two parts are taken as equal, which is about what CPUs show.
class StepCost {
 public:
  void Add(int tokens, double seconds);
  bool known() const { return weight_ > 0; }
  double fixed_s() const;
  double per_token_s() const;

 private:
  double weight_ = 0, tokens_ = 0, seconds_ = 0, tokens2_ = 0, tokens_seconds_ = 0;  // sums, older steps counting less
};

// How likely a draft stands when those before it do. Begins near 1: drafts are tried until they fall.
class Acceptance {
 public:
  // `accepted` of the `judged` drafts that stood at a verification; at most one more was judged in earnest.
  void Add(int judged, int accepted);
  double survival() const { return stood_ / (stood_ + fell_); }

 private:
  double stood_ = 19.8, fell_ = 0.2;  // sums, older verifications counting less
};

// The most drafts (at most `cap`) that bring more than they cost while `others` requests take part in steps. Draft i is
// accepted with probability p = survival^i. It is made while its request waits and saves it a step then; it costs its
// request a token of a verification, and each of the others a token in two steps, less the one that it saves if it is
// accepted.
int DraftsWorth(const StepCost& cost, double survival, int others, int cap);

// How many of `drafts` are expected to stand.
double ExpectedAccepted(double survival, double drafts);

// What a new request finds on its link.
struct LinkTurn {
  double bytes_per_s = 0;  // 0: not known
  double anchor_bytes = 0, residual_bytes = 0;
  int ahead = 0;           // requests whose caches are not complete
  double bytes_ahead = 0;  // that they have left
};

// Whether its anchor should go before what those ahead have left. It then drafts while they complete, and not only
// while its own residual travels; each of them completes later by the time of its anchor.
bool AnchorFirstPays(const StepCost& cost, double survival, int max_drafts, const LinkTurn& link);

}  // namespace lynx
