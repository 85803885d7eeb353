#include "serve/lane.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/status_macros.h"

namespace lynx {

Lane::Lane(Engine* engine, SequenceId sequence, Generation* generation, const GenerateRequest& request,
           TimeNs request_sent, GenerateObserver* observer, const std::atomic<bool>* cancel)
    : engine_(engine),
      sequence_(sequence),
      generation_(generation),
      request_(request),
      request_sent_(request_sent),
      observer_(observer),
      cancel_(cancel),
      chooser_(request.sampling),
      stop_(request.stop),
      prefix_written_(generation->kept().tokens == 0) {}

Status Lane::Advance(bool* may_import, int most_drafts) {
  if (!prefix_written_) {
    if (!std::exchange(*may_import, false)) return Ok();
    LYNX_RETURN_IF_ERROR(WritePrefix(engine_, sequence_, generation_->kept()));
    prefix_written_ = true;
  }
  for (;;) {
    if (!stop_sent_ && (stop_.stopped() || (cancel_ != nullptr && *cancel_))) {
      LYNX_RETURN_IF_ERROR(generation_->On(StopRequested{}));
      stop_sent_ = true;
    }
    if (std::holds_alternative<Wait>(action_)) {
      if (!cache_complete()) result_.most_drafts = std::min(request_.max_drafts, most_drafts);
      generation_->UpdateWindow(MonotonicNow(), draft_step_, result_.most_drafts);
      LYNX_ASSIGN_OR_RETURN(action_, generation_->Next());
    }
    if (std::holds_alternative<Refine>(action_) && !std::exchange(*may_import, false)) return Ok();
    LYNX_ASSIGN_OR_RETURN(const bool done, std::visit([this](const auto& what) { return Do(what); }, action_));
    Show();
    if (!done) return Ok();
    action_ = Wait{};
  }
}

std::optional<StepInput> Lane::step() const {
  if (const auto* draft = std::get_if<Draft>(&action_)) {
    return StepInput{sequence_, std::span(&draft->feed, 1), Logits::kLast};
  }
  if (const auto* decode = std::get_if<Decode>(&action_)) {
    return StepInput{sequence_, std::span(&decode->feed, 1), Logits::kLast};
  }
  if (const auto* check = std::get_if<Check>(&action_)) {
    return StepInput{sequence_, check->feed, check->drafts.empty() ? Logits::kNone : Logits::kAll};
  }
  return std::nullopt;
}

Status Lane::OnStep(std::span<const float> rows, TimeNs begin, TimeNs end) {
  step_begin_ = begin;
  step_end_ = end;
  plain_ = std::holds_alternative<Decode>(action_);
  NoteMemory();
  LYNX_RETURN_IF_ERROR(std::visit([&](const auto& what) { return OnRows(what, rows); }, action_));
  action_ = Wait{};
  Show();
  return Ok();
}

Result<bool> Lane::Do(const Wait&) {
  if (observer_ != nullptr) observer_->OnWaiting(generation_->Progress());
  return false;
}

Result<bool> Lane::Do(const Refine& action) {
  const TimeNs begin = MonotonicNow();
  LYNX_RETURN_IF_ERROR(engine_->WriteBlock(sequence_, generation_->staging()));
  NoteMemory();
  stream_ = action.stream;
  if (cache_complete()) generation_->FreeStaging();
  AddSpan(Phase::kRefine, stream_, begin, MonotonicNow(), 0);
  LYNX_RETURN_IF_ERROR(generation_->On(Refined{action.stream}));
  return true;
}

Result<bool> Lane::Do(const Rollback& action) {
  LYNX_RETURN_IF_ERROR(engine_->Truncate(sequence_, action.length));
  LYNX_RETURN_IF_ERROR(generation_->On(RolledBack{}));
  return true;
}

Status Lane::OnRows(const Draft& action, std::span<const float> rows) {
  const Token token = chooser_.Draft(rows, action.index);
  const TimeNs step = step_end_ - step_begin_;
  draft_step_ = draft_step_ == 0 ? step : std::min(draft_step_, step);
  NoteFirstToken(true);
  AddSpan(Phase::kDraft, stream_, step_begin_, step_end_, 1);
  return generation_->On(Drafted{token, engine_->IsEndOfText(token)});
}

Status Lane::OnRows(const Check& action, std::span<const float> rows) {
  Checked checked = chooser_.Judge(action, rows, stream_);
  checked.end_of_text = checked.has_replacement && engine_->IsEndOfText(checked.replacement);
  AddSpan(action.commit ? Phase::kVerify : Phase::kRecheck, stream_, step_begin_, step_end_, int(action.feed.size()));
  if (action.commit) {
    judged_.drafts += int(action.drafts.size());
    judged_.accepted += checked.accepted;
  }
  if (action.commit) result_.verify_s += double(step_end_ - step_begin_) / double(kSecondNs);
  return generation_->On(checked);
}

Status Lane::OnRows(const Decode& action, std::span<const float> rows) {
  const Token token = chooser_.Plain(rows, action.index);
  NoteFirstToken(false);
  AddSpan(Phase::kDecode, stream_, step_begin_, step_end_, 1);
  return generation_->On(Decoded{token, engine_->IsEndOfText(token)});
}

// Tokens behind the one that completes a stop string were never wanted.
Result<bool> Lane::Do(const Commit& action) {
  const double now = Seconds(MonotonicNow());
  for (Token token : action.tokens) {
    if (stop_.stopped()) break;
    result_.tokens.push_back(token);
    result_.commit_s.push_back(now);
    if (!engine_->IsEndOfText(token)) result_.text += stop_.Feed(engine_->TokenText(token));
  }
  return true;
}

void Lane::NoteFirstToken(bool draft) {
  if (result_.ttft_s != 0) return;
  result_.ttft_s = Seconds(MonotonicNow());
  result_.ttft_is_draft = draft;
}

// Steps of the same kind that follow each other are one span.
void Lane::AddSpan(Phase phase, int stream, TimeNs begin, TimeNs end, int tokens) {
  const double end_s = Seconds(end);
  if (!result_.timeline.empty() && tokens > 0) {
    Span& last = result_.timeline.back();
    if (last.phase == phase && last.stream == stream) {
      last.end_s = end_s;
      last.tokens += tokens;
      return;
    }
  }
  result_.timeline.push_back({phase, stream, Seconds(begin), end_s, tokens});
}

void Lane::Show() {
  if (observer_ != nullptr && result_.text.size() > shown_text_) {
    observer_->OnText(std::string_view(result_.text).substr(shown_text_));
    shown_text_ = result_.text.size();
  }
  int committed = 0;
  const std::vector<Token> tokens = generation_->Tokens(&committed);
  // Without token 0 there is nothing to show; an earlier try may have shown it, and it stays.
  if (committed == 0 || (tokens.size() == shown_tokens_ && committed == shown_committed_)) return;
  shown_tokens_ = tokens.size();
  shown_committed_ = committed;
  if (observer_ != nullptr) observer_->OnTokens(tokens, committed);
}

void Lane::NoteMemory() {
  const auto token_bytes = std::uint64_t(engine_->info().shape.BytesPerToken());
  const std::uint64_t cells = std::uint64_t(engine_->Length(sequence_)) * token_bytes;
  const KeptPrefix& kept = generation_->kept();
  const std::uint64_t arriving = (request_.prompt.size() - std::size_t(kept.tokens)) * token_bytes;
  const std::uint64_t host = (cache_complete() ? 0 : arriving) + (kept.cache ? kept.cache->bytes() : 0);
  result_.peak_kv_bytes = std::max(result_.peak_kv_bytes, cells + host + generation_->peak_held_bytes());
}

GenerateResult Lane::Report() {
  const TransferRecord record = generation_->Record();
  result_.text += stop_.Flush();
  Show();
  result_.reason = std::get<Finish>(action_).reason;
  result_.kept_tokens = generation_->kept().tokens;
  result_.elements =
      engine_->info().shape.ElementsPerToken() * std::int64_t(request_.prompt.size() - result_.kept_tokens);
  result_.stream_bytes = record.stream_bytes;
  result_.stream_wire_bytes = record.stream_wire_bytes;
  result_.prefill_end_s = Seconds(record.prefill_done);
  result_.first_grant_s = Seconds(record.first_grant);
  for (const TimeNs done : record.stream_done) result_.stream_done_s.push_back(done == 0 ? 0 : Seconds(done));
  result_.reused_tokens = int(record.prefill.reused_tokens);
  result_.prefill_node_s = double(record.prefill.prefill_ns) / double(kSecondNs);
  generation_->Counts(&result_.drafted, &result_.accepted);
  result_.timeline.push_back({Phase::kPrefill, 0, 0, result_.prefill_end_s, int(request_.prompt.size())});
  double begin = std::max(result_.first_grant_s, 0.0);
  for (std::size_t stream = 0; stream < result_.stream_done_s.size(); ++stream) {
    result_.timeline.push_back({Phase::kStream, int(stream), begin, result_.stream_done_s[stream], 0});
    begin = result_.stream_done_s[stream];
  }
  std::stable_sort(result_.timeline.begin(), result_.timeline.end(),
                   [](const Span& a, const Span& b) { return a.begin_s < b.begin_s; });
  return std::move(result_);
}

}  // namespace lynx
