// Speculation: choosing tokens from logits (Sampler), and the state machine that drafts on an approximate cache, refines
// it, verifies and commits (Speculator). No engine, clock or network inside; replayable from a log of events.
#pragma once

#include <cstdint>
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

// The token that `index` (0 = the first token after the prompt) gets from these logits. Pure: the same on the prefill node,
// in drafting, in verification and in plain decoding. Greedy when temperature is 0. Gumbel noise comes from a
// counter-based hash of (seed, index, token id); ties go to the lowest id.
Token SampleCoupled(std::span<const float> logits, const SamplingOptions& options, std::uint64_t index);

// Probabilities after top-k, top-p, min-p and temperature; zero where a token is cut. vocab_size values.
void TokenProbabilities(std::span<const float> logits, const SamplingOptions& options, std::span<float> probabilities);

// Rejection sampling (paper eq. 10/11). `draft` was sampled from q; accepted with probability min(1, p/q), otherwise the
// returned token is sampled from max(0, p - q) normalised. Randomness is a pure function of (seed, index).
struct RejectionOutcome {
  bool accepted = false;
  Token token = 0;
};
RejectionOutcome VerifyByRejection(std::span<const float> p, std::span<const float> q, Token draft, std::uint64_t seed,
                                   std::uint64_t index);
// A token sampled from probabilities; randomness is a pure function of (seed, index).
Token SampleFrom(std::span<const float> probabilities, std::uint64_t seed, std::uint64_t index);

// --- the state machine ---

struct SpeculatorConfig {
  int prompt_tokens = 0;     // cache positions [0, prompt_tokens) come over the wire
  int stream_count = 1;
  int max_drafts = 64;       // cap; 0: never draft
  int verify_batch = 16;     // most tokens per verification
  int max_new_tokens = 256;  // committed tokens at most, token 0 included
  int context_tokens = 0;    // prompt + new tokens never exceed this
  bool recheck_middle = true;
};

// Indices: token 0 is the prefill node's. Token i sits at cache position prompt_tokens + i once it has been fed.

// What happened.
struct Token0 { Token token = 0; bool end_of_text = false; };
struct StreamReady { int stream = 0; };  // all pages of the stream are here and decoded; streams complete in order
struct DraftWindow { int tokens = 0; };  // drafts (from now on, in total) that the estimate of the last stream's arrival allows
struct Drafted { Token token = 0; bool end_of_text = false; };
struct Refined { int stream = 0; };      // cache positions [0, prompt_tokens) now hold this stream's quality
// Outcome of a Recheck or Verify: the first `accepted` drafts of the batch stand. If `has_replacement`, the next token is
// `replacement` instead of the next draft (or, when all stood, the token after them).
struct Checked { int accepted = 0; bool has_replacement = false; Token replacement = 0; bool end_of_text = false; };
struct Decoded { Token token = 0; bool end_of_text = false; };  // one plain decoding step
struct RolledBack {};
struct StopRequested {};  // a stop string was committed, or the client left
using SpeculatorEvent = std::variant<Token0, StreamReady, DraftWindow, Drafted, Refined, Checked, Decoded, RolledBack, StopRequested>;

enum class FinishReason : std::uint8_t { kEndOfText, kMaxTokens, kContextFull, kStopped };

// What to do next.
struct Wait {};                                     // nothing until the next event
struct Draft { Token feed = 0; int index = 0; };    // feed token `index - 1`, sample token `index`, report Drafted
struct Refine { int stream = 0; };                  // write this stream's cache over [0, prompt_tokens), report Refined
// Truncate to `length`, report RolledBack.
struct Rollback { int length = 0; };
// Feed `tokens` (token first_index - 1 and the drafts after it but the last; at most verify_batch) in one batch; row i of the logits
// judges draft first_index + i. Stop at the first difference; report Checked. `commit` tells Verify from Recheck.
struct Check { std::vector<Token> feed; std::vector<Token> drafts; int first_index = 0; bool commit = false; };
struct Decode { Token feed = 0; int index = 0; };   // as Draft, on the complete cache: the token is committed; report Decoded
struct Commit { std::vector<Token> tokens; int first_index = 0; };  // these can't be taken back; no report needed
struct Finish { FinishReason reason = FinishReason::kMaxTokens; };
using SpeculatorAction = std::variant<Wait, Draft, Refine, Rollback, Check, Decode, Commit, Finish>;

// A value: copy it, compare it, replay it.
class Speculator {
 public:
  explicit Speculator(const SpeculatorConfig& config);

  // Reports what happened. kInvalid for an event that does not fit the state (nothing changes).
  Status On(const SpeculatorEvent& event);
  // The next thing to do. Each action but Wait, Commit and Finish must be answered by its event before Next is called again;
  // StreamReady, DraftWindow and StopRequested may come at any time.
  SpeculatorAction Next();

  // The tokens shown to a client that asked for drafts: committed ones, then drafts that still stand.
  const std::vector<Token>& tokens() const { return tokens_; }
  int committed() const { return committed_; }      // of tokens()
  int drafted_total() const { return drafted_total_; }
  int accepted_total() const { return accepted_total_; }  // drafts that were standing at verification and were accepted

 private:
  SpeculatorConfig config_;
  std::vector<Token> tokens_;
  int committed_ = 0;
  int drafted_total_ = 0;
  int accepted_total_ = 0;
  // The rest of the state is defined with the implementation.
};

}  // namespace lynx
