#include "front/answer_run.h"

#include <chrono>
#include <utility>

namespace lynx {

AnswerRun::AnswerRun(Answerer* answerer, GenerateRequest request)
    : answerer_(answerer), request_(std::move(request)), thread_([this] { Run(); }) {}

AnswerRun::~AnswerRun() {
  Cancel();
  thread_.join();
}

void AnswerRun::Run() {
  Result<GenerateResult> result = answerer_->Generate(request_, this, &cancel_);
  {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    state_.ended = true;
    new_ = true;
  }
  changed_.notify_all();
}

AnswerRun::State AnswerRun::Wait(TimeNs timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return new_; });
  new_ = state_.ended;  // the end stays news
  State state = state_;
  state_.new_text.clear();
  return state;
}

// With the tokens that follow it is news.
void AnswerRun::OnText(std::string_view text) {
  const std::lock_guard lock(mutex_);
  state_.new_text += text;
}

void AnswerRun::OnTokens(const std::vector<Token>& tokens, int committed) {
  {
    const std::lock_guard lock(mutex_);
    state_.tokens = tokens;
    state_.committed = committed;
    new_ = true;
  }
  changed_.notify_all();
}

}  // namespace lynx
