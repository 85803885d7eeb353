#include "serve/generate_loop.h"

#include <algorithm>
#include <variant>

#include "base/status_macros.h"

namespace lynx {
namespace {

// How long to wait for the network before looking at `cancel` and the window again.
constexpr TimeNs kWaitSlice = 5 * kMillisecondNs;

}  // namespace

GenerateLoop::GenerateLoop(Engine* engine, SequenceId sequence, Generation* generation, const GenerateRequest& request,
                           TimeNs request_sent, GenerateObserver* observer, const std::atomic<bool>* cancel)
    : engine_(engine),
      sequence_(sequence),
      generation_(generation),
      request_(request),
      request_sent_(request_sent),
      observer_(observer),
      cancel_(cancel),
      chooser_(request.sampling),
      stop_(request.stop) {}

Result<GenerateResult> GenerateLoop::Run() {
  bool stop_sent = false;
  for (;;) {
    if (!stop_sent && (stop_.stopped() || (cancel_ != nullptr && *cancel_))) {
      LYNX_RETURN_IF_ERROR(generation_->On(StopRequested{}));
      stop_sent = true;
    }
    generation_->UpdateWindow(MonotonicNow(), draft_step_, request_.max_drafts);
    LYNX_ASSIGN_OR_RETURN(const SpeculatorAction action, generation_->Next(MonotonicNow() + kWaitSlice));
    LYNX_RETURN_IF_ERROR(std::visit([this](const auto& what) { return Do(what); }, action));
    Show();
    if (const auto* finish = std::get_if<Finish>(&action)) return Report(finish->reason);
  }
}

Status GenerateLoop::Step(const std::vector<Token>& feed, Logits logits) {
  const StepInput input{sequence_, feed, logits};
  const Status status = engine_->Step(std::span(&input, 1), &logits_);
  NoteMemory();
  return status;
}

Status GenerateLoop::Do(const Wait&) {
  if (observer_ != nullptr) observer_->OnWaiting(generation_->Progress());
  return Ok();
}

Status GenerateLoop::Do(const Draft& action) {
  const TimeNs begin = MonotonicNow();
  LYNX_RETURN_IF_ERROR(Step({action.feed}, Logits::kLast));
  const Token token = chooser_.Draft(logits_, action.index);
  const TimeNs step = MonotonicNow() - begin;
  draft_step_ = draft_step_ == 0 ? step : std::min(draft_step_, step);
  NoteFirstToken(true);
  AddSpan(Phase::kDraft, stream_, begin, 1);
  return generation_->On(Drafted{token, engine_->IsEndOfText(token)});
}

Status GenerateLoop::Do(const Refine& action) {
  const TimeNs begin = MonotonicNow();
  LYNX_RETURN_IF_ERROR(engine_->WriteBlock(sequence_, generation_->staging()));
  NoteMemory();
  stream_ = action.stream;
  if (cache_complete()) generation_->FreeStaging();
  AddSpan(Phase::kRefine, stream_, begin, 0);
  return generation_->On(Refined{action.stream});
}

Status GenerateLoop::Do(const Rollback& action) {
  LYNX_RETURN_IF_ERROR(engine_->Truncate(sequence_, action.length));
  return generation_->On(RolledBack{});
}

Status GenerateLoop::Do(const Check& action) {
  const TimeNs begin = MonotonicNow();
  LYNX_RETURN_IF_ERROR(Step(action.feed, action.drafts.empty() ? Logits::kNone : Logits::kAll));
  Checked checked = chooser_.Judge(action, logits_, stream_);
  checked.end_of_text = checked.has_replacement && engine_->IsEndOfText(checked.replacement);
  AddSpan(action.commit ? Phase::kVerify : Phase::kRecheck, stream_, begin, int(action.feed.size()));
  if (action.commit) result_.verify_s += double(MonotonicNow() - begin) / double(kSecondNs);
  return generation_->On(checked);
}

Status GenerateLoop::Do(const Decode& action) {
  const TimeNs begin = MonotonicNow();
  LYNX_RETURN_IF_ERROR(Step({action.feed}, Logits::kLast));
  const Token token = chooser_.Plain(logits_, action.index);
  NoteFirstToken(false);
  AddSpan(Phase::kDecode, stream_, begin, 1);
  return generation_->On(Decoded{token, engine_->IsEndOfText(token)});
}

// Tokens behind the one that completes a stop string were never wanted.
Status GenerateLoop::Do(const Commit& action) {
  const double now = Seconds(MonotonicNow());
  for (Token token : action.tokens) {
    if (stop_.stopped()) break;
    result_.tokens.push_back(token);
    result_.commit_s.push_back(now);
    if (!engine_->IsEndOfText(token)) result_.text += stop_.Feed(engine_->TokenText(token));
  }
  return Ok();
}

void GenerateLoop::NoteFirstToken(bool draft) {
  if (result_.ttft_s != 0) return;
  result_.ttft_s = Seconds(MonotonicNow());
  result_.ttft_is_draft = draft;
}

// Steps of the same kind that follow each other are one span.
void GenerateLoop::AddSpan(Phase phase, int stream, TimeNs begin, int tokens) {
  const double end_s = Seconds(MonotonicNow());
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

void GenerateLoop::Show() {
  if (observer_ != nullptr && result_.text.size() > shown_text_) {
    observer_->OnText(std::string_view(result_.text).substr(shown_text_));
    shown_text_ = result_.text.size();
  }
  int committed = 0;
  const std::vector<Token> tokens = generation_->Tokens(&committed);
  if (tokens.size() == shown_tokens_ && committed == shown_committed_) return;
  shown_tokens_ = tokens.size();
  shown_committed_ = committed;
  if (observer_ != nullptr) observer_->OnTokens(tokens, committed);
}

void GenerateLoop::NoteMemory() {
  const auto token_bytes = std::uint64_t(engine_->info().shape.BytesPerToken());
  const std::uint64_t cells = std::uint64_t(engine_->Length(sequence_)) * token_bytes;
  const std::uint64_t staging = cache_complete() ? 0 : request_.prompt.size() * token_bytes;
  result_.peak_kv_bytes = std::max(result_.peak_kv_bytes, cells + staging + generation_->peak_held_bytes());
}

GenerateResult GenerateLoop::Report(FinishReason reason) {
  const TransferRecord record = generation_->Record();
  result_.text += stop_.Flush();
  Show();
  result_.reason = reason;
  result_.elements = engine_->info().shape.ElementsPerToken() * std::int64_t(request_.prompt.size());
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
