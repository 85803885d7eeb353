#include "front/answer_stream.h"

#include <algorithm>

#include "speculate/stop.h"

namespace lynx {

std::string AnswerStream::Begin() const { return head_.kind == ApiKind::kChat ? RoleChunk(head_) : std::string(); }

std::string AnswerStream::Next(const AnswerRun::State& state) {
  std::string events;
  if (!state.new_text.empty()) events += TextChunk(head_, state.new_text);
  if (options_.drafts) events += DraftEvents(state);
  return events;
}

std::string AnswerStream::End(const Result<GenerateResult>& result) const {
  if (!result.ok()) return ErrorEvent(HttpStatusOf(result.status().code()), result.status().message());
  std::string events = FinishChunk(head_, result->reason);
  if (options_.include_usage) events += UsageChunk(head_, *result, options_.drafts);
  return events + StreamDone();
}

std::size_t AnswerStream::TextBytes(std::size_t count) const {
  return count == 0 ? 0 : WholeCharacters(std::string_view(text_).substr(0, ends_[count - 1]));
}

// What the client has is made what there is: what differs is taken back, what became certain is committed, the rest is
// drafted. A token that ends inside a character gives its text to the one that completes it.
std::string AnswerStream::DraftEvents(const AnswerRun::State& state) {
  std::string events;
  const auto differs = std::mismatch(tokens_.begin(), tokens_.end(), state.tokens.begin(), state.tokens.end()).first;
  const auto same = std::size_t(differs - tokens_.begin());
  if (same < tokens_.size()) {
    events += DraftChunk(head_, DraftEvent::kRollback, same, tokens_.size() - same, {});
    tokens_.resize(same);
    ends_.resize(same);
    text_.resize(same == 0 ? 0 : ends_.back());
  }
  for (std::size_t i = same; i < state.tokens.size(); ++i) {
    tokens_.push_back(state.tokens[i]);
    text_ += engine_->TokenText(state.tokens[i]);
    ends_.push_back(text_.size());
  }
  const auto committed = std::size_t(state.committed);
  if (committed > committed_ || !state.new_text.empty()) {
    events += DraftChunk(head_, DraftEvent::kCommit, committed_, committed - committed_, state.new_text);
    committed_ = committed;
  }
  if (const std::size_t from = std::max(same, committed); from < tokens_.size()) {
    const std::size_t begin = TextBytes(from);
    events += DraftChunk(head_, DraftEvent::kDraft, from, tokens_.size() - from,
                         std::string_view(text_).substr(begin, TextBytes(tokens_.size()) - begin));
  }
  return events;
}

}  // namespace lynx
