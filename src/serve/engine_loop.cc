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
      options_{std::max(options.max_running, 1), std::max(options.max_waiting, 1), options.adapt_drafts,
               std::max(options.slice_tokens, 1)},
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
    waiting_.push_back(std::make_unique<Running>());
    waiting_.back()->run = std::move(run);
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
    ParkOne();
    WaitForWork(busy);
  }
  for (auto& running : running_) {
    running->status = Stopping();
    EndOne(running.get());
  }
  while (const std::unique_ptr<Running> waiting = NextWaiting()) waiting->run->End(0, nullptr, Stopping());
}

std::unique_ptr<EngineLoop::Running> EngineLoop::NextWaiting() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return nullptr;
  std::unique_ptr<Running> next = std::move(waiting_.front());
  waiting_.pop_front();
  stats_.waiting = int(waiting_.size());
  return next;
}

// Whoever has left while waiting need not begin.
void EngineLoop::DropCancelled() {
  std::vector<std::shared_ptr<Run>> gone;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&gone](const std::unique_ptr<Running>& waiting) {
      if (waiting->lane || !waiting->run->cancelled()) return false;  // who has begun ends with what it has
      gone.push_back(waiting->run);
      return true;
    });
    stats_.waiting = int(waiting_.size());
  }
  for (const auto& run : gone) run->End(0, nullptr, LimitExceeded("stopped before it began"));
}

void EngineLoop::Admit() {
  DropCancelled();
  while (int(running_.size()) < options_.max_running) {
    std::unique_ptr<Running> next = NextWaiting();
    if (!next) return;
    const Result<SequenceId> sequence = engine_->Open();
    if (!sequence.ok()) {
      next->run->End(0, nullptr, sequence.status());
      continue;
    }
    next->sequence = *sequence;
    if (next->lane) {
      next->status = Resume(next.get());
    } else {
      next->probes = admitted_++ % kProbeEvery == 0;
    }
    running_.push_back(std::move(next));
  }
}

Status EngineLoop::Resume(Running* running) {
  running->lane->MoveTo(running->sequence);
  running->committed_before = running->lane->committed();
  return engine_->WriteBlock(running->sequence, *std::exchange(running->parked, nullptr));
}

// When others wait and all sequences are taken, whoever had its share of tokens makes room: its cache goes to host
// memory, byte for byte, and it joins the queue.
void EngineLoop::ParkOne() {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty() || int(running_.size()) < options_.max_running) return;
  }
  const auto found = std::ranges::find_if(running_, [this](const std::unique_ptr<Running>& running) {
    const Lane* lane = running->lane.get();
    return lane && running->status.ok() && lane->decodes_plainly() &&
           lane->committed() - running->committed_before >= options_.slice_tokens;
  });
  if (found == running_.end()) return;
  Running& running = **found;
  auto block = std::make_unique<CacheBlock>(engine_->info().shape, 0, engine_->Length(running.sequence));
  running.status = engine_->ReadBlock(running.sequence, block.get());
  if (!running.status.ok()) return;
  engine_->Close(running.sequence);
  running.parked = std::move(block);
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(*found));
  running_.erase(found);
  ++stats_.parked;
  stats_.waiting = int(waiting_.size());
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

double EngineLoop::survival(const std::string& codec) const {
  const auto found = acceptance_.find(codec);
  return (found != acceptance_.end() ? found->second : Acceptance()).survival();
}

int EngineLoop::MostDrafts(const Running& running) const {
  constexpr int kNoLimit = 1 << 20;
  if (!options_.adapt_drafts) return kNoLimit;
  const int others = last_step_lanes_ - (running.stepped ? 1 : 0);
  const int worth = DraftsWorth(step_.cost(), survival(running.lane->codec()), others, kNoLimit);
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
