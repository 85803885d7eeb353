// The engine's side of one request: does what the Speculator asks for and keeps the record.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "lynx/engine.h"
#include "serve/decode_node.h"
#include "serve/generation.h"
#include "serve/token_chooser.h"
#include "speculate/stop.h"

namespace lynx {

class GenerateLoop {
 public:
  // `sequence` is empty and stays open afterwards, holding the prompt and the committed tokens but the newest.
  GenerateLoop(Engine* engine, SequenceId sequence, Generation* generation, const GenerateRequest& request,
               TimeNs request_sent, GenerateObserver* observer, const std::atomic<bool>* cancel);

  // Until Finish, or an error of the transfer or the engine.
  Result<GenerateResult> Run();
  // The cache of the prompt is Q_full.
  bool cache_complete() const { return stream_ == generation_->last_stream(); }

 private:
  // Each does the action and reports its event.
  Status Do(const Draft& action);
  Status Do(const Refine& action);
  Status Do(const Rollback& action);
  Status Do(const Check& action);
  Status Do(const Decode& action);
  Status Do(const Commit& action);
  Status Do(const Wait& action);
  Status Do(const Finish&) { return Ok(); }

  // Runs tokens on the sequence; logits_ has the wanted rows.
  Status Step(const std::vector<Token>& feed, Logits logits);
  double Seconds(TimeNs time) const { return double(time - request_sent_) / double(kSecondNs); }
  void AddSpan(Phase phase, int stream, TimeNs begin, int tokens);
  void NoteFirstToken(bool draft);
  void Show();
  void NoteMemory();
  GenerateResult Report(FinishReason reason);

  Engine* const engine_;
  const SequenceId sequence_;
  Generation* const generation_;
  const GenerateRequest& request_;
  const TimeNs request_sent_;
  GenerateObserver* const observer_;
  const std::atomic<bool>* const cancel_;

  TokenChooser chooser_;
  StopMatcher stop_;
  std::vector<float> logits_;
  int stream_ = -1;             // that the cache holds; -1: none yet
  TimeNs draft_step_ = 0;       // the fastest so far: what a draft costs when nothing else runs
  std::size_t shown_text_ = 0;  // bytes
  std::size_t shown_tokens_ = 0;
  int shown_committed_ = -1;
  GenerateResult result_;
};

}  // namespace lynx
