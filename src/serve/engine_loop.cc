#include "serve/engine_loop.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace lynx {
namespace {

// How long to wait for the network before looking at cancelled requests and draft windows again.
constexpr auto kWaitSlice = std::chrono::milliseconds(5);
// Every so manieth request finds out whether drafts stand again; it costs at most a verification of so many tokens.
constexpr std::uint64_t kProbeEvery = 16;
constexpr int kProbeDrafts = 4;

Status Stopping() { return IoError("the decode node is stopping"); }

}  // namespace

EngineLoop::EngineLoop(Engine* engine, const Options& options)
    : engine_(engine),
      options_{std::max(options.max_running, 1), std::max(options.max_waiting, 1), options.adapt_drafts},
      step_(engine),
      thread_([this] { Loop(); }) {}

void EngineLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status EngineLoop::Add(std::shared_ptr<Run> run) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Stopping();
    if (int(waiting_.size()) >= options_.max_waiting) {
      return LimitExceeded("the decode node is busy: " + std::to_string(waiting_.size()) + " requests wait already");
    }
    waiting_.push_back(std::move(run));
    stats_.waiting = int(waiting_.size());
  }
  changed_.notify_all();
  return Ok();
}

void EngineLoop::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

EngineLoopStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void EngineLoop::Loop() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      woken_ = false;
      if (stopping_) break;
    }
    Admit();
    const bool busy = Turn();
    EndFinished();
    WaitForWork(busy);
  }
  for (auto& running : running_) {
    running->status = Stopping();
    EndOne(running.get());
  }
  while (const std::shared_ptr<Run> run = NextWaiting()) run->End(0, nullptr, Stopping());
}

std::shared_ptr<EngineLoop::Run> EngineLoop::NextWaiting() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return nullptr;
  std::shared_ptr<Run> run = std::move(waiting_.front());
  waiting_.pop_front();
  stats_.waiting = int(waiting_.size());
  return run;
}

// Whoever has left while waiting need not begin.
void EngineLoop::DropCancelled() {
  std::vector<std::shared_ptr<Run>> gone;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&gone](const std::shared_ptr<Run>& run) {
      if (run->cancelled()) gone.push_back(run);
      return run->cancelled();
    });
    stats_.waiting = int(waiting_.size());
  }
  for (const auto& run : gone) run->End(0, nullptr, LimitExceeded("stopped before it began"));
}

void EngineLoop::Admit() {
  DropCancelled();
  while (int(running_.size()) < options_.max_running) {
    const std::shared_ptr<Run> run = NextWaiting();
    if (!run) return;
    const Result<SequenceId> sequence = engine_->Open();
    if (!sequence.ok()) {
      run->End(0, nullptr, sequence.status());
      continue;
    }
    running_.push_back(std::make_unique<Running>());
    running_.back()->run = run;
    running_.back()->sequence = *sequence;
    running_.back()->probes = admitted_++ % kProbeEvery == 0;
  }
}

void EngineLoop::Advance(Running* running, bool* may_import) {
  if (!running->lane) {
    Result<std::unique_ptr<Lane>> lane = running->run->Begin(running->sequence);
    running->status = lane.status();
    if (lane.ok()) running->lane = std::move(lane).value();
    if (!running->lane) return;
  }
  running->status = running->lane->Advance(may_import, MostDrafts(*running));
  if (running->status.ok() || !running->run->Retry(*running->lane, running->status)) return;
  running->lane.reset();
  running->status = engine_->Truncate(running->sequence, 0);
}

int EngineLoop::MostDrafts(const Running& running) const {
  constexpr int kNoLimit = 1 << 20;
  if (!options_.adapt_drafts) return kNoLimit;
  const int others = last_step_lanes_ - (running.stepped ? 1 : 0);
  const auto found = acceptance_.find(running.lane->codec());
  const double survival = (found != acceptance_.end() ? found->second : Acceptance()).survival();
  const int worth = DraftsWorth(step_.cost(), survival, others, kNoLimit);
  if (!running.probes || worth >= kProbeDrafts) return worth;
  return DraftsWorth(step_.cost(), 1, others, kProbeDrafts);
}

// Everyone does what needs no step, then all steps are run together. False: nothing happened.
bool EngineLoop::Turn() {
  bool may_import = true;
  std::vector<Running*> stepping;
  std::vector<Lane*> lanes;
  for (auto& running : running_) {
    Advance(running.get(), &may_import);
    if (!running->status.ok() || !running->lane || !running->lane->step()) continue;
    stepping.push_back(running.get());
    lanes.push_back(running->lane.get());
  }
  // Whoever was first goes to the end: imports take turns.
  if (running_.size() > 1) std::rotate(running_.begin(), running_.begin() + 1, running_.end());
  const std::vector<Status> statuses = step_.Run(lanes);
  for (auto& running : running_) running->stepped = false;
  for (std::size_t i = 0; i < stepping.size(); ++i) {
    stepping[i]->status = statuses[i];
    stepping[i]->stepped = true;
    const Lane::Judged judged = lanes[i]->TakeJudged();
    if (judged.drafts > 0) acceptance_[lanes[i]->codec()].Add(judged.drafts, judged.accepted);
  }
  if (!lanes.empty()) last_step_lanes_ = int(lanes.size());
  const std::lock_guard lock(mutex_);
  stats_.running = int(running_.size());
  stats_.steps += lanes.empty() ? 0 : 1;
  stats_.shared_steps += lanes.size() > 1 ? 1 : 0;
  stats_.step_inputs += lanes.size();
  return !lanes.empty() || !may_import;
}

void EngineLoop::EndFinished() {
  std::erase_if(running_, [this](const std::unique_ptr<Running>& running) {
    if (running->status.ok() && !(running->lane && running->lane->finished())) return false;
    EndOne(running.get());
    return true;
  });
  const std::lock_guard lock(mutex_);
  stats_.running = int(running_.size());
}

void EngineLoop::EndOne(Running* running) {
  running->run->End(running->sequence, running->lane.get(), running->status);
  running->lane.reset();
  engine_->Close(running->sequence);
}

void EngineLoop::WaitForWork(bool busy) {
  if (busy) return;
  std::unique_lock lock(mutex_);
  const auto something = [this] {
    return stopping_ || woken_ || (!waiting_.empty() && int(running_.size()) < options_.max_running);
  };
  if (running_.empty()) {
    changed_.wait(lock, something);
  } else {
    changed_.wait_for(lock, kWaitSlice, something);
  }
}

}  // namespace lynx
