// The engine's side of one request: does what the Speculator asks for, step by step, and keeps the record. Steps are
// run by the caller, so that the lanes of many requests share them.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lynx/engine.h"
#include "serve/decode_node.h"
#include "serve/generation.h"
#include "serve/token_chooser.h"
#include "speculate/stop.h"

namespace lynx {

class Lane {
 public:
  // `sequence` is empty and stays open afterwards, holding the prompt and the committed tokens but the newest.
  Lane(Engine* engine, SequenceId sequence, Generation* generation, const GenerateRequest& request, TimeNs request_sent,
       GenerateObserver* observer, const std::atomic<bool>* cancel);

  // Does what needs no step of the engine, until there is a step to run, nothing to do or the end. Imports take long:
  // one is done only while *may_import, which becomes false by it. An error ends the request: of the transfer or the
  // engine. `most_drafts` is what the request's own max_drafts is lowered to.
  Status Advance(bool* may_import, int most_drafts);
  bool finished() const { return std::holds_alternative<Finish>(action_); }
  // What to run next; none: wait.
  std::optional<StepInput> step() const;
  // It ran, in a step that lanes may have shared; rows of the wanted logits.
  Status OnStep(std::span<const float> rows, TimeNs begin, TimeNs end);

  // The cache of the prompt is Q_full.
  bool cache_complete() const { return stream_ == generation_->last_stream(); }
  // Drafts that stood at verifications since the last call, and how many of them were accepted.
  struct Judged {
    int drafts = 0, accepted = 0;
  };
  Judged TakeJudged() { return std::exchange(judged_, {}); }
  // Only its own sequence and what it commits matter to it now: its cache can be read, and go on in another sequence.
  bool decodes_plainly() const { return plain_ && std::holds_alternative<Wait>(action_); }
  int committed() const { return int(result_.tokens.size()); }
  SequenceId sequence() const { return sequence_; }
  void MoveTo(SequenceId sequence) { sequence_ = sequence; }
  const std::string& codec() const { return generation_->codec().spec; }
  // Once finished.
  GenerateResult Report();

 private:
  // Each does the action and reports its event; true: it is done.
  Result<bool> Do(const Refine& action);
  Result<bool> Do(const Rollback& action);
  Result<bool> Do(const Commit& action);
  Result<bool> Do(const Wait& action);
  // What needs a step, or nothing more.
  template <typename Other>
  Result<bool> Do(const Other&) {
    return false;
  }
  Status OnRows(const Draft& action, std::span<const float> rows);
  Status OnRows(const Check& action, std::span<const float> rows);
  Status OnRows(const Decode& action, std::span<const float> rows);
  template <typename Other>
  Status OnRows(const Other&, std::span<const float>) {
    return Invalid("no step was wanted");
  }

  double Seconds(TimeNs time) const { return double(time - request_sent_) / double(kSecondNs); }
  void AddSpan(Phase phase, int stream, TimeNs begin, TimeNs end, int tokens);
  void NoteFirstToken(bool draft);
  void Show();
  void NoteMemory();

  Engine* const engine_;
  SequenceId sequence_;
  Generation* const generation_;
  const GenerateRequest& request_;
  const TimeNs request_sent_;
  GenerateObserver* const observer_;
  const std::atomic<bool>* const cancel_;

  SpeculatorAction action_ = Wait{};  // what is to be done
  TokenChooser chooser_;
  StopMatcher stop_;
  bool stop_sent_ = false;
  bool plain_ = false;                    // the newest step was plain decoding
  bool prefix_written_;                   // that was kept
  int stream_ = -1;                       // that the cache holds; -1: none yet
  TimeNs step_begin_ = 0, step_end_ = 0;  // of the newest step
  TimeNs draft_step_ = 0;                 // the fastest so far: what a draft costs when nothing else runs
  std::size_t shown_text_ = 0;            // bytes
  std::size_t shown_tokens_ = 0;
  int shown_committed_ = -1;
  Judged judged_;
  GenerateResult result_;
};

}  // namespace lynx
