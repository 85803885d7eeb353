// One request under way, on a thread of its own. Whoever shows it asks for what is new since it last asked, so a slow
// client costs no memory: what it missed is one step, not a queue.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "front/answerer.h"
#include "lynx/transfer.h"

namespace lynx {

class AnswerRun final : private GenerateObserver {
 public:
  // How the answer looks now.
  struct State {
    std::string new_text;       // committed, since the last call
    std::vector<Token> tokens;  // committed ones, then drafts
    int committed = 0;
    bool ended = false;
  };

  // `answerer` outlives it.
  AnswerRun(Answerer* answerer, GenerateRequest request);
  // Cancels it if it has not ended.
  ~AnswerRun() override;

  // Blocks until something is new or the time is over.
  State Wait(TimeNs timeout);
  // Ends soon.
  void Cancel() { cancel_ = true; }
  // Once ended.
  const Result<GenerateResult>& result() const { return *result_; }

 private:
  void OnText(std::string_view text) override;
  void OnTokens(const std::vector<Token>& tokens, int committed) override;
  void OnWaiting(const TransferProgress&) override {}
  void Run();

  Answerer* const answerer_;
  const GenerateRequest request_;
  std::atomic<bool> cancel_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_;
  bool new_ = false;
  std::optional<Result<GenerateResult>> result_;
  std::thread thread_;
};

}  // namespace lynx
