#include "serve/shared_step.h"

#include "net/socket.h"

namespace lynx {
namespace {

std::size_t RowsOf(const StepInput& input) {
  if (input.logits == Logits::kAll) return input.tokens.size();
  return input.logits == Logits::kLast ? 1 : 0;
}

}  // namespace

std::vector<Status> SharedStep::Run(std::span<Lane* const> lanes) {
  std::vector<Status> statuses(lanes.size());
  if (lanes.empty()) return statuses;
  if (StepAll(lanes).ok()) {
    GiveRows(lanes, statuses);
    return statuses;
  }
  // An engine that fails has changed nothing.
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    statuses[i] = StepAll(lanes.subspan(i, 1));
    if (statuses[i].ok()) GiveRows(lanes.subspan(i, 1), std::span(statuses).subspan(i, 1));
  }
  return statuses;
}

Status SharedStep::StepAll(std::span<Lane* const> lanes) {
  inputs_.clear();
  for (const Lane* lane : lanes) inputs_.push_back(*lane->step());
  begin_ = MonotonicNow();
  const Status status = engine_->Step(inputs_, &logits_);
  end_ = MonotonicNow();
  std::size_t tokens = 0;
  for (const StepInput& input : inputs_) tokens += input.tokens.size();
  if (status.ok()) cost_.Add(int(tokens), double(end_ - begin_) / double(kSecondNs));
  return status;
}

void SharedStep::GiveRows(std::span<Lane* const> lanes, std::span<Status> statuses) {
  const auto vocab = std::size_t(engine_->info().vocab_size);
  std::span<const float> left = logits_;
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const std::size_t values = RowsOf(inputs_[i]) * vocab;
    statuses[i] = lanes[i]->OnStep(left.first(values), begin_, end_);
    left = left.subspan(values);
  }
}

}  // namespace lynx
