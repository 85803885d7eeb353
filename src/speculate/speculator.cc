// The state is what the cache holds (cells_, refined_), what has arrived (ready_, window_) and the tokens; Choose
// derives the next action from it alone. Draft i is judged at the cache's present quality exactly if its predecessor's
// cell is there (token i follows cell prompt_tokens + i - 1), so no phase has to be remembered: cells that are missing
// are fed, cells that are too many are rolled back.
#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "lynx/speculate.h"

namespace lynx {
namespace {

template <typename... Lambdas>
struct Overload : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
Overload(Lambdas...) -> Overload<Lambdas...>;

Status Unexpected(const char* event) {
  return Invalid(std::string("speculator: ") + event + " does not answer the action that runs");
}

}  // namespace

Status CheckSpeculator(const SpeculatorConfig& config) {
  const auto bad = [](const char* what) { return Invalid(std::string("speculator: ") + what); };
  if (config.prompt_tokens < 1) return bad("prompt_tokens must be at least 1");
  if (config.stream_count < 1) return bad("stream_count must be at least 1");
  if (config.max_drafts < 0) return bad("max_drafts must be 0 (off) or positive");
  if (config.verify_batch < 1) return bad("verify_batch must be at least 1");
  if (config.max_new_tokens < 1) return bad("max_new_tokens must be at least 1");
  if (config.context_tokens < config.prompt_tokens) return bad("context_tokens must hold the prompt");
  return Ok();
}

Speculator::Speculator(const SpeculatorConfig& config) : config_(config), window_(config.max_drafts) {
  LYNX_CHECK(CheckSpeculator(config).ok());
}

// --- events ---

Status Speculator::OnToken0(const Token0& event) {
  if (committed_ > 0) return Invalid("speculator: token 0 is here already");
  if (finish_) return Invalid("speculator: token 0 after the end");
  tokens_.push_back(event.token);
  ends_ = event.end_of_text;
  committed_ = 1;
  return Ok();
}

Status Speculator::OnStreamReady(const StreamReady& event) {
  if (event.stream != ready_ + 1 || event.stream >= config_.stream_count) {
    return Invalid("speculator: stream " + std::to_string(event.stream) + " is not the next one");
  }
  ready_ = event.stream;
  return Ok();
}

// On the complete cache the batch's standing drafts and the replacement are committed; before, the replacement is the
// newest draft. What follows the first difference is forgotten; its cells are rolled back by Choose.
Status Speculator::OnChecked(const Checked& event) {
  const Check* check = std::get_if<Check>(&running_);
  if (check == nullptr) return Unexpected("Checked");
  const bool in_range = event.accepted >= 0 && event.accepted <= int(check->drafts.size());
  const bool wants_token = !check->drafts.empty() && event.accepted < int(check->feed.size());
  if (!in_range || event.has_replacement != wants_token) {
    return Invalid("speculator: Checked with " + std::to_string(event.accepted) + " of " +
                   std::to_string(check->drafts.size()) + " drafts does not fit the batch");
  }
  cells_ += int(check->feed.size());
  if (stop_) return Ok();
  if (event.has_replacement) {
    tokens_.resize(std::size_t(check->first_index + event.accepted));
    Append(event.replacement, event.end_of_text);
  }
  if (check->commit) {
    accepted_total_ += event.accepted;
    committed_ = check->first_index + event.accepted + int(event.has_replacement);
  } else {
    drafted_total_ += int(event.has_replacement);
  }
  return Ok();
}

Status Speculator::On(const SpeculatorEvent& event) {
  const auto take = Overload{
      [&](const Token0& token0) { return OnToken0(token0); },
      [&](const StreamReady& ready) { return OnStreamReady(ready); },
      [&](const DraftWindow& window) {
        if (window.tokens < 0) return Invalid("speculator: a draft window is not negative");
        window_ = window.tokens;
        return Ok();
      },
      [&](const StopRequested&) {
        stop_ = true;
        return Ok();
      },
      [&](const Drafted& drafted) {
        if (!std::holds_alternative<Draft>(running_)) return Unexpected("Drafted");
        ++cells_;
        ++drafted_total_;
        if (!stop_) Append(drafted.token, drafted.end_of_text);
        return Ok();
      },
      [&](const Refined& refined) {
        const Refine* refine = std::get_if<Refine>(&running_);
        if (refine == nullptr || refine->stream != refined.stream) return Unexpected("Refined");
        refined_ = refined.stream;
        cells_ = config_.prompt_tokens;
        return Ok();
      },
      [&](const Checked& checked) { return OnChecked(checked); },
      [&](const Decoded& decoded) {
        if (!std::holds_alternative<Decode>(running_)) return Unexpected("Decoded");
        ++cells_;
        if (stop_) return Ok();
        Append(decoded.token, decoded.end_of_text);
        ++committed_;
        return Ok();
      },
      [&](const RolledBack&) {
        const Rollback* rollback = std::get_if<Rollback>(&running_);
        if (rollback == nullptr) return Unexpected("RolledBack");
        cells_ = rollback->length;
        return Ok();
      },
  };
  Status status = std::visit(take, event);
  const bool answers = event.index() >= SpeculatorEvent(Drafted{}).index();  // the events before come at any time
  if (status.ok() && answers) running_ = Wait{};
  return status;
}

void Speculator::Append(Token token, bool end_of_text) {
  tokens_.push_back(token);
  ends_ = end_of_text;
}

// --- actions ---

// Tokens that can ever be: every one but the newest needs a cell.
int Speculator::TokenLimit() const {
  const std::int64_t fitting = std::int64_t{config_.context_tokens} - config_.prompt_tokens + 1;
  return int(std::min<std::int64_t>(config_.max_new_tokens, fitting));
}

bool Speculator::MayDraft() const {
  return Standing() < std::min(config_.max_drafts, window_) && !ends_ && int(tokens_.size()) < TokenLimit();
}

// The prompt and all tokens but the newest.
int Speculator::WantedCells() const { return config_.prompt_tokens + int(tokens_.size()) - 1; }

// An end on the complete cache waits until the cells of fallen drafts are rolled back.
std::optional<FinishReason> Speculator::Ending() const {
  if (stop_) return FinishReason::kStopped;
  if (committed_ == 0 || Standing() > 0 || cells_ > WantedCells()) return std::nullopt;
  if (ends_) return FinishReason::kEndOfText;
  if (committed_ < TokenLimit()) return std::nullopt;
  return committed_ == config_.max_new_tokens ? FinishReason::kMaxTokens : FinishReason::kContextFull;
}

// Judges the drafts whose predecessors' cells are missing. The last draft is fed along when the batch has room and a
// token after it is wanted: it costs one more row (0.4-0.6 of a step on a CPU, next to nothing on a GPU) and saves a
// whole step whenever all drafts stand.
SpeculatorAction Speculator::NextCheck() const {
  Check check;
  check.commit = refined_ == config_.stream_count - 1;
  check.first_index = cells_ - config_.prompt_tokens + 1;
  const auto first = tokens_.begin() + check.first_index;
  const int left = int(tokens_.end() - first);
  if (!check.commit && !config_.recheck_middle) {
    check.feed.assign(first - 1, first - 1 + std::min(left, config_.verify_batch));
    return check;
  }
  const int judged = std::min(left, config_.verify_batch);
  const bool wants_next = check.commit ? !ends_ && int(tokens_.size()) < TokenLimit() : MayDraft();
  const bool feeds_last = judged == left && judged < config_.verify_batch && wants_next;
  check.feed.assign(first - 1, first - 1 + judged + int(feeds_last));
  check.drafts.assign(first, first + judged);
  return check;
}

SpeculatorAction Speculator::Choose() const {
  if (committed_ == 0) return Wait{};
  const bool complete = ready_ == config_.stream_count - 1;
  const bool useful = complete || MayDraft() || (config_.recheck_middle && Standing() > 0);
  if (ready_ > refined_ && useful) {
    if (cells_ > config_.prompt_tokens) return Rollback{config_.prompt_tokens};
    return Refine{ready_};
  }
  if (refined_ < 0) return Wait{};
  if (cells_ > WantedCells()) return Rollback{WantedCells()};
  const bool verifying = refined_ == config_.stream_count - 1;
  const bool judges = verifying || config_.recheck_middle || MayDraft();
  if (cells_ < WantedCells() && judges) return NextCheck();
  if (verifying) return Decode{tokens_.back(), int(tokens_.size())};
  if (MayDraft()) return Draft{tokens_.back(), int(tokens_.size())};
  return Wait{};
}

SpeculatorAction Speculator::Next() {
  if (!std::holds_alternative<Wait>(running_)) return Wait{};
  if (announced_ < committed_) {
    const Commit commit{{tokens_.begin() + announced_, tokens_.begin() + committed_}, announced_};
    announced_ = committed_;
    return commit;
  }
  if (!finish_) finish_ = Ending();
  if (finish_) return Finish{*finish_};
  SpeculatorAction action = Choose();
  running_ = action;
  return action;
}

}  // namespace lynx
