// Speculation: choosing tokens from logits (Sampler), and the state machine that drafts on an approximate cache,
// refines it, verifies and commits (Speculator). No engine, clock or network inside; replayable from a log of events.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lynx/result.h"
#include "lynx/sampling.h"

namespace lynx {

// --- sampling ---

// kInvalid naming the parameter that is out of range (temperature < 0 or not finite, top_p outside (0, 1], …).
Status CheckSampling(const SamplingOptions& options);

// The token that `index` (0 = the first token after the prompt) gets from these logits. Pure: the same on the prefill
// node, in drafting, in verification and in plain decoding, and the same bits on every machine (no libm). Greedy when
// temperature is 0, otherwise argmax of logit / temperature + Gumbel noise over the tokens that top-k, top-p and min-p
// keep; the noise is a counter-based hash of (seed, index, token id). Ties go to the lowest id. NaN counts as -inf,
// +inf as the largest float; if nothing is above -inf the token is 0. Options must pass CheckSampling; logits are not
// empty.
Token SampleCoupled(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index);

// Probabilities after top-k, top-p, min-p and temperature; zero where a token is cut. vocab_size values. Greedy: 1 for
// the token that SampleCoupled gives.
void TokenProbabilities(std::span<const float> logits, const SamplingOptions& options, std::span<float> probabilities);

// Rejection sampling (paper eq. 10/11). `draft` was sampled from q; accepted with probability min(1, p/q), otherwise
// the returned token is sampled from max(0, p - q) normalised. Either way the returned token is distributed as p:
// whoever keeps it as a draft must keep p as its new q. Randomness is a pure function of (seed, index, stream), where
// `stream` is the stream whose cache gave p: the checks of one draft at different streams must be independent.
struct RejectionOutcome {
  bool accepted = false;
  Token token = 0;
};
RejectionOutcome VerifyByRejection(std::span<const float> p, std::span<const float> q, Token draft, std::uint64_t seed,
                                   std::uint64_t index, int stream);
// A token sampled from probabilities (a draft, a plain step, the token after the last draft); randomness is a pure
// function of (seed, index), independent of VerifyByRejection's.
Token SampleFrom(std::span<const float> probabilities, std::uint64_t seed, std::uint64_t index);

// --- the state machine ---

struct SpeculatorConfig {
  int prompt_tokens = 0;     // cells [0, prompt_tokens) come over the wire; at least 1
  int stream_count = 1;      // at least 1
  int max_drafts = 64;       // most drafts that stand at a time; 0: never draft
  int verify_batch = 16;     // most tokens fed per Check; at least 1
  int max_new_tokens = 256;  // committed tokens at most, token 0 included; at least 1
  int context_tokens = 0;    // cells at most: the prompt and every token that is fed. The newest token is not fed, so
                             // context_tokens - prompt_tokens + 1 tokens can be committed
  bool recheck_middle = true;
  bool operator==(const SpeculatorConfig&) const = default;
};

// kInvalid naming the value that is out of range.
Status CheckSpeculator(const SpeculatorConfig& config);

// Indices: token 0 is the prefill node's. Token i sits at cell prompt_tokens + i once it has been fed.
// `end_of_text` says whether the token of the event ends the text.

// --- what happened ---
struct Token0 {
  Token token = 0;
  bool end_of_text = false;
  bool operator==(const Token0&) const = default;
};
// All pages of the stream are here and decoded. Each stream is reported once, in order.
struct StreamReady {
  int stream = 0;
  bool operator==(const StreamReady&) const = default;
};
// The most drafts that may stand at a time, by the estimate of the last stream's arrival; never undoes a draft. Before
// the first one, max_drafts.
struct DraftWindow {
  int tokens = 0;
  bool operator==(const DraftWindow&) const = default;
};
// A stop string was committed, or the client left.
struct StopRequested {
  bool operator==(const StopRequested&) const = default;
};
struct Drafted {
  Token token = 0;
  bool end_of_text = false;
  bool operator==(const Drafted&) const = default;
};
struct Refined {
  int stream = 0;
  bool operator==(const Refined&) const = default;
};
// The first `accepted` drafts of the batch stand. `replacement` is the token after them: what the row of the first
// draft that fell gave, or, when all stood, what the row after the last draft gave. So has_replacement says accepted <
// feed.size(); after a Check without drafts it is false.
struct Checked {
  int accepted = 0;
  bool has_replacement = false;
  Token replacement = 0;
  bool end_of_text = false;
  bool operator==(const Checked&) const = default;
};
struct Decoded {
  Token token = 0;
  bool end_of_text = false;
  bool operator==(const Decoded&) const = default;
};
struct RolledBack {
  bool operator==(const RolledBack&) const = default;
};
using SpeculatorEvent =
    std::variant<Token0, StreamReady, DraftWindow, StopRequested, Drafted, Refined, Checked, Decoded, RolledBack>;

// --- what to do next ---
// Nothing until the next event.
struct Wait {
  bool operator==(const Wait&) const = default;
};
// Feed token index - 1, sample token `index`, report Drafted.
struct Draft {
  Token feed = 0;
  int index = 0;
  bool operator==(const Draft&) const = default;
};
// Write the cache that streams 0…stream give over cells [0, prompt_tokens), report Refined. No cell follows them.
struct Refine {
  int stream = 0;
  bool operator==(const Refine&) const = default;
};
// Truncate to `length` cells, report RolledBack.
struct Rollback {
  int length = 0;
  bool operator==(const Rollback&) const = default;
};
// Feed `feed` in one batch, report Checked. Row i of the logits judges drafts[i], which is token first_index + i; one
// row more than drafts, if fed, gives the token after them (index first_index + drafts.size()). Judge in order and stop
// at the first difference. `commit`: the cache is complete, what stands is committed; otherwise a middle stream
// re-checks. Without drafts: only feed, no row is wanted (recheck_middle is off and the cells are missing).
struct Check {
  std::vector<Token> feed;
  std::vector<Token> drafts;
  int first_index = 0;
  bool commit = false;
  bool operator==(const Check&) const = default;
};
// As Draft, on the complete cache: the token is committed. Report Decoded.
struct Decode {
  Token feed = 0;
  int index = 0;
  bool operator==(const Decode&) const = default;
};
// Tokens first_index… can't be taken back. No report.
struct Commit {
  std::vector<Token> tokens;
  int first_index = 0;
  bool operator==(const Commit&) const = default;
};
enum class FinishReason : std::uint8_t { kEndOfText, kMaxTokens, kContextFull, kStopped };
// The end; Next gives it again for ever. Every committed token has been in a Commit before. Once the last stream has
// been refined and the reason is not kStopped, the cells are exactly the prompt and the committed tokens but the
// newest; otherwise they are of no use.
struct Finish {
  FinishReason reason = FinishReason::kMaxTokens;
  bool operator==(const Finish&) const = default;
};
using SpeculatorAction = std::variant<Wait, Draft, Refine, Rollback, Check, Decode, Commit, Finish>;

// A value: copy it, compare it, replay it.
class Speculator {
 public:
  // The config must pass CheckSpeculator.
  explicit Speculator(const SpeculatorConfig& config);

  // Reports what happened. kInvalid for an event that does not fit the state (nothing changes). StreamReady,
  // DraftWindow and StopRequested may come at any time, also while an action runs and after Finish (ignored then).
  Status On(const SpeculatorEvent& event);
  // The next thing to do. An action other than Wait, Commit and Finish runs until its event; meanwhile Next gives Wait.
  // After StopRequested the event of a running action is taken and its tokens are dropped.
  SpeculatorAction Next();

  // The tokens shown to a client that asked for drafts: committed ones, then drafts that still stand.
  const std::vector<Token>& tokens() const { return tokens_; }
  int committed() const { return committed_; }            // of tokens()
  int drafted_total() const { return drafted_total_; }    // drafts ever made, also by a re-check
  int accepted_total() const { return accepted_total_; }  // drafts that were standing at verification and were accepted
  bool operator==(const Speculator&) const = default;

 private:
  Status OnToken0(const Token0& event);
  Status OnStreamReady(const StreamReady& event);
  Status OnChecked(const Checked& event);
  void Append(Token token, bool end_of_text);
  int TokenLimit() const;
  int Standing() const { return int(tokens_.size()) - committed_; }
  bool MayDraft() const;
  int WantedCells() const;
  std::optional<FinishReason> Ending() const;
  SpeculatorAction NextCheck() const;
  SpeculatorAction Choose() const;

  SpeculatorConfig config_;
  std::vector<Token> tokens_;
  int committed_ = 0;
  int drafted_total_ = 0;
  int accepted_total_ = 0;
  int announced_ = 0;  // committed tokens that have been in a Commit
  bool ends_ = false;  // tokens_.back() is end of text
  int ready_ = -1;     // newest stream reported ready
  int refined_ = -1;   // stream that cells [0, prompt_tokens) hold
  int cells_ = 0;      // length of the cache; all of it of `refined_`'s quality
  int window_ = 0;     // drafts that may stand
  bool stop_ = false;
  SpeculatorAction running_ = Wait{};   // the action whose event is awaited
  std::optional<FinishReason> finish_;  // as Next has given it
};

}  // namespace lynx
