#include "front_node.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/status_macros.h"
#include "codec/codec_spec.h"
#include "front/front.h"
#include "lynx/codec.h"
#include "serve/decode_node.h"

namespace lynx {
namespace {

// Prefill nodes that come later are taken then; ones that don't fit are told before anybody asks.
constexpr TimeNs kAwaitNs = 2 * kSecondNs;

class NodeAnswerer final : public Answerer {
 public:
  NodeAnswerer(Engine* engine, DecodeNode* node) : engine_(engine), node_(node) {}
  const Engine& engine() const override { return *engine_; }
  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel) override {
    return node_->Generate(request, observer, cancel);
  }
  bool ready() const override {
    const std::vector<PrefillNodeState> nodes = node_->PrefillNodes();
    return std::any_of(nodes.begin(), nodes.end(), [](const PrefillNodeState& node) { return node.up; });
  }
  EngineLoopStats stats() const override { return node_->stats(); }

 private:
  Engine* const engine_;
  DecodeNode* const node_;
};

}  // namespace

const char* const kFrontHelp =
    "Then, as with any server that speaks OpenAI's API (base_url http://127.0.0.1:8080/v1):\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is a lynx?\"}], \"stream\": true}'\n"
    "Streams carry committed text only; with \"lynx\": {\"drafts\": true} they also have events draft, commit and\n"
    "rollback. \"lynx\": {\"codec\": \"int8\", \"max_drafts\": 0} sets these for one request.\n"
    "Other paths: /v1/completions, /v1/models, /health, /metrics, and a page at /.\n"
    "Other machines: give --http 0.0.0.0:8080 and --api-keys FILE, which has a line per key with its SHA-256 hash:\n"
    "  printf %s KEY | sha256sum >> FILE     (a name may stand in place of the \"-\")\n"
    "Clients then send Authorization: Bearer KEY. HTTP is not encrypted: put a TLS proxy in front.\n"
    "Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong use, 130 stopped by a second Ctrl-C.";

void FrontFlags::AddTo(CLI::App* app) {
  app->add_option("--http", http, "address for clients; port 0 takes a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  app->add_option("--api-keys", api_keys, "SHA-256 hashes of the keys that clients must have, one per line")
      ->type_name("FILE");
  app->add_flag("--no-auth", no_auth, "answer other machines although there are no keys");
  AddNumber(app, "--requests", requests, "requests that share the engine; each takes cache memory for --context tokens",
            1, 256);
  AddNumber(app, "--waiting", waiting, "requests that may wait behind them; more are told to come later", 1, 10000);
  AddNumber(app, "--keep-mb", keep_mib,
            "memory for finished conversations: of a prompt that goes on with one only the rest travels; its answer is "
            "exact for the cache that went on, not bit for bit that of one sent anew",
            0, 1 << 20, "MIB");
  AddNumber(app, "--connections", connections, "connections of clients at most", 1, 10000);
  AddNumber(app, "--max-body", max_body_mib, "length of a request at most", 1, 1024, "MIB");
  AddNumber(app, "--drain", drain_s, "when stopping: time for requests under way", 0, 86400, "S");
  app->add_option("--codec", codec,
                  ListOf(CodecNames()) + ", or auto: by prompt, link and engine; parameters as name:key=value")
      ->capture_default_str()
      ->type_name("CODEC");
  AddNumber(app, "--max-drafts", max_drafts, "drafts at most; 0 never drafts", 0, 1024);
  node.AddTo(app);
}

Result<FrontOptions> FrontFlags::Options() const {
  LYNX_RETURN_IF_ERROR(CheckServed(codec));
  FrontOptions options;
  options.listen = http;
  options.limits.connections = connections;
  options.limits.body_bytes = std::size_t(max_body_mib) << 20;
  options.open = no_auth;
  options.codec = codec;
  options.max_drafts = max_drafts;
  options.log = Say;
  if (!api_keys.empty()) {
    LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(api_keys));
    Result<ApiKeys> keys = ApiKeys::Parse(text);
    if (!keys.ok()) return Status(keys.status().code(), api_keys + ": " + keys.status().message());
    options.keys = std::move(*keys);
  }
  LYNX_RETURN_IF_ERROR(CheckFront(options));
  return options;
}

Status RunFront(Engine* engine, const PrefillPoolOptions& prefill, const FrontFlags& flags, FrontOptions options) {
  OutliveLogReader();
  if (flags.codec != "auto") LYNX_RETURN_IF_ERROR(MakeCodec(flags.codec, engine->info().shape).status());
  DecodeOptions decode;
  flags.node.Set(&decode);
  decode.max_running = flags.requests;
  decode.max_waiting = flags.waiting;
  decode.keep_bytes = std::uint64_t(flags.keep_mib) << 20;
  decode.prefill = prefill;
  decode.prefill.log = Say;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<DecodeNode> node, DecodeNode::Start(engine, decode));
  const Status status = node->AwaitPrefill(kAwaitNs);
  if (!status.ok() && status.code() != ErrorCode::kIo) return status;
  NodeAnswerer answerer(engine, node.get());
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Front> front, Front::Start(&answerer, std::move(options)));
  std::printf("listening on http://%s\n", front->address().c_str());
  std::fflush(stdout);
  Say("model " + engine->info().model + ", " + std::to_string(engine->info().max_tokens) + " tokens of context, " +
      std::to_string(flags.requests) + " requests at a time; Ctrl-C stops");
  while (!StopFlag()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Say("stopping: requests under way get " + std::to_string(int(flags.drain_s)) + " s; Ctrl-C again ends at once");
  front->Drain(TimeNs(flags.drain_s * double(kSecondNs)));
  return Ok();
}

}  // namespace lynx
