#include "sim/sim_request.h"

#include <algorithm>

#include "sim/sim_model.h"

namespace lynx {
namespace {

constexpr TimeNs kDetection = 2 * kSecondNs;
constexpr TimeNs kDecoding = kSecondNs;  // what the rest of an answer takes at most once all streams are here
// On an unbroken connection a transfer that has this long is done: links carry all of a run's bytes in less.
constexpr TimeNs kEnoughTime = 2 * kSecondNs;

// What sequential decoding on Q_full commits after token 0, and how it ends.
std::vector<Token> Sequential(const SimRequest& request, Token token0, FinishReason* reason) {
  StagedPages pages;
  const std::uint64_t prompt = PromptHash(request.prompt);
  for (const PageAddress& address : SimPages(int(request.prompt.size()))) {
    for (int stream = 0; stream < request.streams; ++stream) {
      pages[address].push_back(
          HashBytes(*SimPageStream(request.tried.back().connection->source, prompt, address, stream)));
    }
  }
  CellState state = PromptState(pages, request.streams - 1);
  std::vector<Token> tokens{token0};
  const SpeculatorConfig& config = request.speculation;
  const int fitting = config.context_tokens - config.prompt_tokens + 1;
  while (!EndsText(tokens.back()) && int(tokens.size()) < std::min(config.max_new_tokens, fitting)) {
    state = Feed(state, tokens.back());
    tokens.push_back(NextToken(state, request.disagreement));
  }
  *reason = EndsText(tokens.back())                       ? FinishReason::kEndOfText
            : int(tokens.size()) == config.max_new_tokens ? FinishReason::kMaxTokens
                                                          : FinishReason::kContextFull;
  return tokens;
}

std::string Text(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) text += " " + std::to_string(token);
  return text;
}

// Whatever was shown, also by a request that failed later, is the beginning of the sequential answer.
void CheckTokens(const SimRequest& request, World* world) {
  if (request.committed.empty()) {
    if (request.status.ok() && request.reason != FinishReason::kStopped)
      world->Violate("P2", request.Name() + " ended without a token");
    return;
  }
  FinishReason reason;
  const std::vector<Token> expected = Sequential(request, request.committed.front(), &reason);
  const std::vector<Token>& got = request.committed;
  const bool begins = got.size() <= expected.size() && std::equal(got.begin(), got.end(), expected.begin());
  const bool whole = request.status.ok() && request.reason != FinishReason::kStopped;
  if (!begins || (whole && (got.size() != expected.size() || request.reason != reason))) {
    world->Violate("P2", request.Name() + " committed" + Text(got) + "; on Q_full it is" + Text(expected));
  }
}

void CheckTime(const SimRequest& request, World* world) {
  const TimeNs taken = request.ended_at - request.submitted;
  const TimeNs allowed = TimeNs(request.deadline_ms) * kMillisecondNs + kDetection + request.node_stopped +
                         (request.transferred ? kDecoding : 0);
  if (taken > allowed) {
    world->Violate("P3", request.Name() + " ended after " + std::to_string(taken / kMillisecondNs) +
                             " ms, its deadline is " + std::to_string(request.deadline_ms) + " ms");
  }
}

// A request ends badly only by its own client, its own deadline, a full node, or what happened to connections of its
// own.
void CheckBlame(const SimRequest& request, World* world) {
  if (request.status.ok() || request.left || request.node_stopped > 0) return;
  const bool broken = std::ranges::any_of(request.tried, &SimRequest::Tried::broken);
  if (broken || request.all_broken) return;
  if (request.status.code() == ErrorCode::kLimit) {
    if (request.status.message().find("deadline") == std::string::npos) return;  // too many requests
    if (world->slow() || !request.began || request.ended_at - *request.began < kEnoughTime) return;
  }
  world->Violate("P6", request.Name() + " had no fault of its own and ended with " + request.status.ToString());
}

void NoteOutcome(const SimRequest& request, World* world) {
  if (request.retries > 0) world->Note(Seen::kRetried);
  if (request.status.ok()) {
    if (request.reason == FinishReason::kStopped) return world->Note(Seen::kStopped);
    world->Note(Seen::kCompleted);
    if (request.reason == FinishReason::kEndOfText) world->Note(Seen::kEndOfText);
    if (request.reason == FinishReason::kContextFull) world->Note(Seen::kContextFull);
    if (request.streams == 1) world->Note(Seen::kOneStream);
    if (request.retries > 0) world->Note(Seen::kRetriedCompleted);
    return;
  }
  const std::string& message = request.status.message();
  if (request.tried.empty() && request.status.code() == ErrorCode::kIo) return world->Note(Seen::kNobodyUp);
  switch (request.status.code()) {
    case ErrorCode::kLimit:
      return world->Note(message.find("deadline") != std::string::npos ? Seen::kDeadlinePassed
                         : request.left                                ? Seen::kStopped
                                                                       : Seen::kBusy);
    case ErrorCode::kIo:
      return world->Note(Seen::kLost);
    case ErrorCode::kCorrupt:
      return world->Note(Seen::kCorrupt);
    default:
      return world->Note(Seen::kRefused);
  }
}

}  // namespace

void CheckOutcome(const SimRequest& request, World* world) {
  if (world->logs()) {
    world->Log(request.Name(), "ends: " + request.status.ToString() + "; committed" + Text(request.committed));
  }
  if (request.node_gone) return world->Note(Seen::kNodeGone);
  CheckTokens(request, world);
  CheckTime(request, world);
  CheckBlame(request, world);
  NoteOutcome(request, world);
}

}  // namespace lynx
