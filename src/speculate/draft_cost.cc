#include "speculate/draft_cost.h"

#include <algorithm>
#include <cmath>

namespace lynx {
namespace {

constexpr double kStepMemory = 0.98;      // about the last 50 steps count
constexpr double kJudgementMemory = 0.9;  // about the last 10 verifications
constexpr double kPriorWeight = 0.05;     // of "both parts are equal", against a spread of one token

}  // namespace

void StepCost::Add(int tokens, double seconds) {
  const double x = tokens;
  weight_ = weight_ * kStepMemory + 1;
  tokens_ = tokens_ * kStepMemory + x;
  seconds_ = seconds_ * kStepMemory + seconds;
  tokens2_ = tokens2_ * kStepMemory + x * x;
  tokens_seconds_ = tokens_seconds_ * kStepMemory + x * seconds;
}

double StepCost::per_token_s() const {
  if (!known()) return 0;
  const double mean_tokens = tokens_ / weight_, mean_seconds = seconds_ / weight_;
  const double spread = tokens2_ / weight_ - mean_tokens * mean_tokens;
  const double together = tokens_seconds_ / weight_ - mean_tokens * mean_seconds;
  const double prior = mean_seconds / (mean_tokens + 1);
  const double slope = (together + kPriorWeight * prior) / (spread + kPriorWeight);
  return std::clamp(slope, 0.0, mean_seconds / mean_tokens);
}

double StepCost::fixed_s() const {
  return known() ? std::max(0.0, seconds_ / weight_ - per_token_s() * tokens_ / weight_) : 0;
}

void Acceptance::Add(int judged, int accepted) {
  stood_ = stood_ * kJudgementMemory + accepted;
  fell_ = fell_ * kJudgementMemory + (accepted < judged ? 1 : 0);
}

int DraftsWorth(const StepCost& cost, double survival, int others, int cap) {
  if (!cost.known()) return cap;
  const double token = cost.per_token_s();
  const double step = cost.fixed_s() + token * (others + 1);
  double p = survival;
  for (int drafts = 0; drafts < cap; ++drafts, p *= survival) {
    if (p * step <= token + others * token * (2 - p)) return drafts;
  }
  return cap;
}

double ExpectedAccepted(double survival, double drafts) {
  return survival >= 1 ? drafts : survival * (1 - std::pow(survival, drafts)) / (1 - survival);
}

bool AnchorFirstPays(const StepCost& cost, double survival, int max_drafts, const LinkTurn& link) {
  if (link.ahead == 0) return true;
  if (!cost.known() || link.bytes_per_s == 0) return false;
  const double step = cost.fixed_s() + cost.per_token_s() * (link.ahead + 1);
  const double most = DraftsWorth(cost, survival, link.ahead, max_drafts);
  const auto saved_s = [&](double bytes) {
    return step * ExpectedAccepted(survival, std::min(most, bytes / link.bytes_per_s / step));
  };
  const double gain_s = saved_s(link.residual_bytes + link.bytes_ahead) - saved_s(link.residual_bytes);
  return gain_s > link.ahead * link.anchor_bytes / link.bytes_per_s;
}

}  // namespace lynx
