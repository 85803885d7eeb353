// One step of the engine for many requests.
#pragma once

#include <span>
#include <vector>

#include "lynx/engine.h"
#include "serve/lane.h"
#include "speculate/draft_cost.h"

namespace lynx {

class SharedStep {
 public:
  explicit SharedStep(Engine* engine) : engine_(engine) {}

  // Runs what these lanes want, all of them in one Step, and gives each its rows. Where that fails they run one by one,
  // so that only those fail that are to blame: their errors, in the order of the lanes.
  std::vector<Status> Run(std::span<Lane* const> lanes);
  const StepCost& cost() const { return cost_; }

 private:
  Status StepAll(std::span<Lane* const> lanes);
  void GiveRows(std::span<Lane* const> lanes, std::span<Status> statuses);

  Engine* const engine_;
  std::vector<StepInput> inputs_;
  std::vector<float> logits_;
  TimeNs begin_ = 0, end_ = 0;
  StepCost cost_;
};

}  // namespace lynx
