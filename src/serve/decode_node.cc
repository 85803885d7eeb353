#include "serve/decode_node.h"

#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <random>

#include "base/status_macros.h"
#include "lynx/codec.h"
#include "net/net_node.h"
#include "serve/codec_threads.h"
#include "serve/exactness.h"
#include "serve/generate_loop.h"
#include "serve/generation.h"
#include "serve/node_layout.h"

namespace lynx {

class DecodeNode::Impl {
 public:
  Impl(Engine* engine, const DecodeOptions& options)
      // Jobs are bounded by the pages of the accepted offers, so the queue need not be: the network thread never waits.
      : engine_(engine),
        options_(options),
        codec_threads_(options.codec_threads, std::numeric_limits<std::size_t>::max()) {}

  ~Impl() { net_.reset(); }

  Status Start() {
    NetOptions net;
    net.tcp = options_.tcp;
    net.node.name = options_.name;
    net.node.role = NodeRole::kDecode;
    std::random_device device;
    net.node.epoch = (std::uint64_t{device()} << 32) | device();
    net.node.layout = LayoutOf(engine_->info());
    net.node.codecs = CodecNames();
    LYNX_ASSIGN_OR_RETURN(net_, NetNode::Start(net, [this](TransferNode& node, TransferEvent event, TimeNs now) {
                            OnEvent(node, std::move(event), now);
                          }));
    return Ok();
  }

  Result<PeerId> Connect(const std::string& address, TimeNs timeout) {
    LYNX_ASSIGN_OR_RETURN(const PeerId peer, net_->Connect(address, timeout));
    std::unique_lock lock(mutex_);
    const bool known =
        changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [&] { return peers_.contains(peer); });
    if (!known) return IoError(address + " does not answer as a Lynx node");
    const Status status = peers_.at(peer);
    if (!status.ok()) return Status(status.code(), address + ": " + status.message());
    return peer;
  }

  Result<GenerateResult> Generate(PeerId peer, const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel) {
    SpeculatorConfig speculation;
    LYNX_RETURN_IF_ERROR(Configure(request, &speculation));
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Codec> made, MakeCodec(request.codec, engine_->info().shape));
    const std::shared_ptr<const Codec> codec = std::move(made);
    const auto generation =
        std::make_shared<Generation>(engine_->info(), codec, speculation, request.check, &codec_threads_);
    LYNX_ASSIGN_OR_RETURN(const SequenceId sequence, engine_->Open());
    Result<GenerateResult> result = RunOn(sequence, peer, *codec, generation, request, observer, cancel);
    engine_->Close(sequence);
    return result;
  }

 private:
  Status Configure(const GenerateRequest& request, SpeculatorConfig* config) const {
    const EngineInfo& info = engine_->info();
    LYNX_RETURN_IF_ERROR(CheckSampling(request.sampling));
    LYNX_RETURN_IF_ERROR(CheckStops(request.stop));
    if (request.prompt.empty()) return Invalid("the prompt is empty");
    if (int(request.prompt.size()) >= info.max_tokens) {
      return LimitExceeded("the prompt has " + std::to_string(request.prompt.size()) + " tokens, the context " +
                           std::to_string(info.max_tokens) + "; give a larger --context or a shorter prompt");
    }
    config->prompt_tokens = int(request.prompt.size());
    config->max_drafts = request.max_drafts;
    config->verify_batch = info.verify_batch;
    config->max_new_tokens = request.max_new_tokens;
    config->context_tokens = info.max_tokens;
    config->recheck_middle = request.recheck_middle;
    return CheckSpeculator(*config);
  }

  Result<GenerateResult> RunOn(SequenceId sequence, PeerId peer, const Codec& codec,
                               const std::shared_ptr<Generation>& generation, const GenerateRequest& request,
                               GenerateObserver* observer, const std::atomic<bool>* cancel) {
    TransferRequest wire;
    wire.tokens = request.prompt;
    wire.sampling = request.sampling;
    wire.codec = codec.info().spec;
    wire.deadline_ms = request.deadline_ms;
    wire.overlap = request.overlap;
    wire.reuse = request.reuse;
    const TimeNs sent = MonotonicNow();
    LYNX_ASSIGN_OR_RETURN(const RequestId id, Send(peer, wire, generation));
    GenerateLoop loop(engine_, sequence, generation.get(), request, sent, observer, cancel);
    Result<GenerateResult> result = loop.Run();
    Release(id);
    if (!result.ok()) return result;
    result->codec = codec.info().spec;
    if (request.check && loop.cache_complete()) {
      LYNX_ASSIGN_OR_RETURN(const Exactness exactness,
                            CheckExactness(engine_, sequence, codec, generation->Received(), int(request.prompt.size()),
                                           result->tokens, request.sampling));
      result->checked = true;
      result->exact = exactness.exact;
      result->difference = exactness.difference;
    }
    return result;
  }

  Result<RequestId> Send(PeerId peer, const TransferRequest& wire, const std::shared_ptr<Generation>& generation) {
    Result<RequestId> id = IoError("not sent");
    net_->Call([&](TransferNode& node, TimeNs now) {
      id = node.Request(peer, wire, now);
      if (id.ok()) generations_[*id] = generation;
    });
    return id;
  }

  // The request is over here; if the transfer is not, the prefill node is told.
  void Release(RequestId id) {
    net_->Call([&](TransferNode& node, TimeNs now) {
      generations_.erase(id);
      node.Abort(id, Status(ErrorCode::kLimit, "the decode node needs no more of it"), now);
    });
  }

  // On the network thread.
  void OnEvent(TransferNode& node, TransferEvent event, TimeNs now) {
    if (const auto* up = std::get_if<PeerUp>(&event)) return SetPeer(up->peer, Ok());
    if (const auto* down = std::get_if<PeerDown>(&event)) return SetPeer(down->peer, down->status);
    const RequestId id = std::visit([](const auto& what) { return RequestOf(what); }, event);
    const auto found = generations_.find(id);
    if (found != generations_.end()) found->second->OnEvent(node, std::move(event), now, *engine_);
  }

  template <typename Event>
  static RequestId RequestOf(const Event& event) {
    if constexpr (requires { event.request; }) return event.request;
    return {};
  }

  void SetPeer(PeerId peer, Status status) {
    {
      const std::lock_guard lock(mutex_);
      peers_[peer] = std::move(status);
    }
    changed_.notify_all();
  }

  Engine* const engine_;
  const DecodeOptions options_;
  std::map<RequestId, std::shared_ptr<Generation>> generations_;  // network thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<PeerId, Status> peers_;
  CodecThreads codec_threads_;
  std::unique_ptr<NetNode> net_;
};

DecodeNode::DecodeNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeNode::~DecodeNode() = default;

Result<std::unique_ptr<DecodeNode>> DecodeNode::Start(Engine* engine, const DecodeOptions& options) {
  auto impl = std::make_unique<Impl>(engine, options);
  LYNX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<DecodeNode>(new DecodeNode(std::move(impl)));
}

Result<PeerId> DecodeNode::Connect(const std::string& address, TimeNs timeout) {
  return impl_->Connect(address, timeout);
}

Result<GenerateResult> DecodeNode::Generate(PeerId peer, const GenerateRequest& request, GenerateObserver* observer,
                                            const std::atomic<bool>* cancel) {
  return impl_->Generate(peer, request, observer, cancel);
}

}  // namespace lynx
