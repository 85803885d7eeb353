#include "front_node.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/status_macros.h"
#include "codec/codec_spec.h"
#include "front/front.h"
#include "lynx/codec.h"
#include "serve/decode_node.h"

namespace lynx {
namespace {

constexpr auto kReconnect = std::chrono::seconds(1);
constexpr TimeNs kConnectNs = 2 * kSecondNs;

void Say(std::string_view line) { std::fprintf(stderr, "%s\n", OneLine(line).c_str()); }

// A decode node with one prefill node, which is connected again whenever it went.
class OnePrefillNode final : public Answerer {
 public:
  OnePrefillNode(Engine* engine, DecodeNode* node, std::string address)
      : engine_(engine), node_(node), address_(std::move(address)) {}
  ~OnePrefillNode() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (keeper_.joinable()) keeper_.join();
  }

  // kUnsupported when the nodes don't fit each other; a node that is not there yet is waited for.
  Status Start() {
    const Status status = TryConnect();
    if (!status.ok() && status.code() != ErrorCode::kIo) return status;
    if (!status.ok()) Say(status.message() + " (tried again every second)");
    keeper_ = std::thread([this] { Keep(); });
    return Ok();
  }

  const Engine& engine() const override { return *engine_; }
  EngineLoopStats stats() const override { return node_->stats(); }
  bool ready() const override {
    const std::lock_guard lock(mutex_);
    return peer_.has_value();
  }

  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel) override {
    std::optional<PeerId> peer;
    {
      const std::lock_guard lock(mutex_);
      peer = peer_;
    }
    if (!peer) return IoError("no prefill node is there; try later");
    Result<GenerateResult> result = node_->Generate(*peer, request, observer, cancel);
    if (!result.ok() && result.status().code() == ErrorCode::kIo) Lost(*peer);
    return result;
  }

 private:
  Status TryConnect() {
    LYNX_ASSIGN_OR_RETURN(const PeerId peer, node_->Connect(address_, kConnectNs));
    Say("prefill node " + address_ + " is there");
    const std::lock_guard lock(mutex_);
    peer_ = peer;
    return Ok();
  }

  void Lost(PeerId peer) {
    const std::lock_guard lock(mutex_);
    if (peer_ != peer) return;
    peer_.reset();
    Say("prefill node " + address_ + " is gone");
    changed_.notify_all();
  }

  void Keep() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !peer_; });
      if (stopping_) return;
      lock.unlock();
      const bool connected = TryConnect().ok();
      lock.lock();
      if (!connected) changed_.wait_for(lock, kReconnect, [this] { return stopping_; });
    }
  }

  Engine* const engine_;
  DecodeNode* const node_;
  const std::string address_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<PeerId> peer_;
  bool stopping_ = false;
  std::thread keeper_;
};

Status Serve(Engine* engine, const std::string& prefill, const FrontFlags& flags, FrontOptions options) {
  LYNX_RETURN_IF_ERROR(MakeCodec(flags.codec, engine->info().shape).status());
  DecodeOptions decode;
  decode.tcp.congestion_control = flags.node.congestion_control;
  decode.codec_threads = flags.node.codec_threads;
  decode.max_running = flags.requests;
  decode.max_waiting = flags.waiting;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<DecodeNode> node, DecodeNode::Start(engine, decode));
  OnePrefillNode answerer(engine, node.get(), prefill);
  LYNX_RETURN_IF_ERROR(answerer.Start());
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
  const auto number = [app](const char* name, auto& value, const char* meaning, const char* type, double low,
                            double high) {
    app->add_option(name, value, meaning)->capture_default_str()->type_name(type)->check(Between(low, high));
  };
  app->add_option("--http", http, "address for clients; port 0 takes a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  app->add_option("--api-keys", api_keys, "SHA-256 hashes of the keys that clients must have, one per line")
      ->type_name("FILE");
  app->add_flag("--no-auth", no_auth, "answer other machines although there are no keys");
  number("--requests", requests, "requests that share the engine; each takes cache memory for --context tokens", "N", 1,
         256);
  number("--waiting", waiting, "requests that may wait behind them; more are told to come later", "N", 1, 10000);
  number("--connections", connections, "connections of clients at most", "N", 1, 10000);
  number("--max-body", max_body_mib, "length of a request at most", "MIB", 1, 1024);
  number("--drain", drain_s, "when stopping: time for requests under way", "S", 0, 86400);
  app->add_option("--codec", codec, ListOf(CodecNames()) + "; parameters as name:key=value")
      ->capture_default_str()
      ->type_name("CODEC");
  number("--max-drafts", max_drafts, "drafts at most; 0 never drafts", "N", 0, 1024);
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

int RunFront(const std::string& command, Engine* engine, const std::string& prefill, const FrontFlags& flags,
             FrontOptions options) {
  const Status status = Serve(engine, prefill, flags, std::move(options));
  return status.ok() ? kExitOk : Fail(command, status);
}

}  // namespace lynx
