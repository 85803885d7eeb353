// The thread that owns a decode node's engine. All requests share its steps; each turn passes at most one import.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lynx/engine.h"
#include "serve/decode_node.h"
#include "serve/lane.h"
#include "serve/shared_step.h"

namespace lynx {

class EngineLoop {
 public:
  // One request: how its lane comes to be and what follows its end. All on the engine's thread.
  class Run {
   public:
    virtual ~Run() = default;
    // The request has a sequence, which is empty. Null: not yet, ask again. An error ends it.
    virtual Result<std::unique_ptr<Lane>> Begin(SequenceId sequence) = 0;
    // The lane failed. True: Begin follows once more; otherwise End.
    virtual bool Retry(const Lane& lane, const Status& status) = 0;
    // Over: the lane finished, or the status says why not (then `lane` may be null). The sequence is closed
    // afterwards.
    virtual void End(SequenceId sequence, Lane* lane, const Status& status) = 0;
    virtual bool cancelled() const = 0;  // never false again
  };

  struct Options {
    int max_running = 1;       // requests at a time, at least 1
    int max_waiting = 64;      // behind them
    bool adapt_drafts = true;  // draft as far as it pays (speculate/draft_cost.h)
    int slice_tokens = 256;    // committed while others wait, before these get their turn
  };
  EngineLoop(Engine* engine, const Options& options);
  ~EngineLoop() { Stop(); }
  // Ends what is under way, and what is added later, with an error. Wake may be called until the destructor.
  void Stop();

  // kLimit when too many wait; then nothing is called. Otherwise End is called once.
  Status Add(std::shared_ptr<Run> run);
  // There may be something to do for a lane. Any thread.
  void Wake();
  EngineLoopStats stats() const;

  // --- engine thread: what steps cost, and how likely a draft stands ---
  const StepCost& step_cost() const { return step_.cost(); }
  double survival(const std::string& codec) const;

 private:
  // A request that waits or runs.
  struct Running {
    std::shared_ptr<Run> run;
    SequenceId sequence = 0;             // while it runs
    std::unique_ptr<Lane> lane;          // once it has begun
    std::unique_ptr<CacheBlock> parked;  // its cache, while it waits for another turn
    int committed_before = 0;            // when this turn began
    Status status;
    bool stepped = false;  // took part in the last step
    bool probes = false;   // drafts a little even where it did not pay lately
  };

  void Loop();
  void DropCancelled();
  void Admit();
  std::unique_ptr<Running> NextWaiting();
  Status Resume(Running* running);
  void ParkOne();
  bool Turn();
  void Advance(Running* running, bool* may_import);
  int MostDrafts(const Running& running) const;
  void EndFinished();
  void EndOne(Running* running);
  void WaitForWork(bool busy);

  Engine* const engine_;
  const Options options_;
  SharedStep step_;
  // Engine thread.
  std::vector<std::unique_ptr<Running>> running_;
  std::map<std::string, Acceptance> acceptance_;  // by codec
  int last_step_lanes_ = 0;
  std::uint64_t admitted_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Running>> waiting_;
  EngineLoopStats stats_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lynx
