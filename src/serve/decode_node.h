// The decode node: asks a prefill node for a prompt's cache, drafts while it arrives, verifies, goes on to the end.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/engine.h"
#include "lynx/result.h"
#include "lynx/speculate.h"
#include "lynx/transfer.h"
#include "net/socket.h"
#include "net/tls.h"
#include "serve/prefill_pool.h"
#include "serve/transfer_progress.h"

namespace lynx {

struct DecodeOptions {
  std::string name = "decode";
  TcpOptions tcp;
  TlsOptions tls;
  int codec_threads = 1;  // that decode pages
  int max_running = 1;    // requests that share the engine; with checks it needs one sequence more
  int max_waiting = 64;   // requests behind them; more are refused
  // Anchors under way may take this long at the measured rate; further requests begin later, one always does.
  double anchors_s = 2;
  int slice_tokens = 256;        // that a request commits while others wait, before it makes room
  bool adapt_drafts = true;      // draft only as far as it pays, by measured cost and acceptance
  std::uint64_t keep_bytes = 0;  // of finished conversations, for prompts that go on with them (0: none)
  int retries = 2;               // with another prefill node, or the same once it is back, until token 1 is committed
  PrefillPoolOptions prefill;
};

// When a request's anchor travels: before later streams of other requests, in the request's turn, or as pays
// (speculate/draft_cost.h).
enum class AnchorOrder { kAuto, kFirst, kInTurn };

struct GenerateRequest {
  std::vector<Token> prompt;
  std::string codec = "lynx";  // "auto": by prompt, link and engine (serve/codec_choice.h)
  SamplingOptions sampling;
  int max_new_tokens = 128;
  int max_drafts = 64;
  bool recheck_middle = true;
  std::vector<std::string> stop;
  std::uint32_t deadline_ms = 0;
  bool overlap = true;
  bool reuse = true;                              // of kept caches, on both nodes
  AnchorOrder anchor_order = AnchorOrder::kAuto;  // kFirst where someone watches the drafts
  bool check = false;                             // compare with sequential decoding afterwards (serve/exactness.h)
};

// What happened between two times, in seconds from the moment the request was sent.
enum class Phase { kPrefill, kStream, kRefine, kDraft, kRecheck, kVerify, kDecode };
struct Span {
  Phase phase = Phase::kPrefill;
  int stream = 0;  // of kStream, kRefine, kRecheck
  double begin_s = 0;
  double end_s = 0;
  int tokens = 0;  // drafted, checked or decoded
};

struct GenerateResult {
  std::string codec;          // canonical spec
  std::vector<Token> tokens;  // committed, token 0 first
  std::string text;           // of the tokens, up to a stop string
  FinishReason reason = FinishReason::kMaxTokens;
  std::int64_t elements = 0;  // of the tokens that travelled
  std::vector<std::uint64_t> stream_bytes;
  // Seconds on this node's monotonic clock since the request was sent.
  double prefill_end_s = 0;  // PREFILL_DONE arrived: token 0 is known
  double first_grant_s = 0;
  double ttft_s = 0;  // the first token that this node chose itself: token 1
  bool ttft_is_draft = false;
  std::vector<double> stream_done_s;
  std::vector<std::uint64_t> stream_wire_bytes;
  std::vector<double> commit_s;  // of each committed token; [0] is token 0's
  double verify_s = 0;
  int drafted = 0;
  int accepted = 0;
  bool anchor_first = false;        // it went before later streams of others
  int most_drafts = 0;              // that the request was allowed at last, by its own limit and by what paid
  int retries = 0;                  // the answer began again, on another cache, with the same token 0
  int kept_tokens = 0;              // of the prompt, taken from a kept conversation: only the rest travelled
  int reused_tokens = 0;            // of the prompt, on the prefill node
  double prefill_node_s = 0;        // what the prefill node says it took
  std::uint64_t peak_kv_bytes = 0;  // cache cells, kept prefix, staging block and held page streams
  std::vector<Span> timeline;
  bool checked = false;
  bool exact = false;
  std::string difference;  // what differed, for people
};

// Watches a request, on the engine's thread; must not block.
class GenerateObserver {
 public:
  virtual ~GenerateObserver() = default;
  // The answer grew by committed text: whole UTF-8 characters, no stop string nor what may be the beginning of one.
  virtual void OnText(std::string_view /*text*/) {}
  // The tokens changed: the first `committed` can't be taken back, the rest are drafts.
  virtual void OnTokens(const std::vector<Token>& tokens, int committed) = 0;
  // There is nothing to do but wait for the network.
  virtual void OnWaiting(const TransferProgress& progress) = 0;
};

struct EngineLoopStats {
  int running = 0;  // requests
  int waiting = 0;  // for a sequence
  std::uint64_t steps = 0;
  std::uint64_t shared_steps = 0;  // that more than one request took part in
  std::uint64_t step_inputs = 0;   // requests in steps, summed up
  std::uint64_t kept_bytes = 0;    // of finished conversations
  std::uint64_t parked = 0;        // times a request made room for another and went on later
};

class DecodeNode {
 public:
  // The engine must outlive the node. It is used while requests run, on a thread of the node.
  static Result<std::unique_ptr<DecodeNode>> Start(Engine* engine, const DecodeOptions& options);
  ~DecodeNode();

  // Waits for the first prefill node. kIo when nobody is there, kUnsupported naming the field in which nodes differ.
  Status AwaitPrefill(TimeNs timeout = 5 * kSecondNs);
  std::vector<PrefillNodeState> PrefillNodes() const;

  // Runs one request to its end; any number of threads may call it. `observer` (may be null) is called on the engine's
  // thread. When *cancel becomes true (may be null) it ends with kStopped and what was committed. kLimit when too many
  // requests wait, kIo when no prefill node is reachable.
  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel);

  EngineLoopStats stats() const;

 private:
  class Impl;
  explicit DecodeNode(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx
