#include "serve/decode_node.h"

#include <future>
#include <limits>
#include <map>
#include <optional>

#include "base/status_macros.h"
#include "lynx/codec.h"
#include "net/net_node.h"
#include "serve/codec_choice.h"
#include "serve/codec_threads.h"
#include "serve/engine_loop.h"
#include "serve/exactness.h"
#include "serve/generation.h"
#include "serve/kept_conversations.h"
#include "serve/lane.h"
#include "serve/node_layout.h"
#include "serve/retry.h"
#include "speculate/draft_cost.h"

namespace lynx {

class DecodeNode::Impl {
 public:
  Impl(Engine* engine, const DecodeOptions& options)
      // Jobs are bounded by the pages of the accepted offers, so the queue need not be: the network thread never waits.
      : engine_(engine),
        options_(options),
        kept_(options.keep_bytes),
        codec_threads_(options.codec_threads, std::numeric_limits<std::size_t>::max()),
        pool_(options.prefill) {}

  // Threads end before what they use: the engine's and the pool's use the network, the network the codec's. These wake
  // the engine's, so that it ends first and is destroyed last.
  ~Impl() {
    if (loop_) loop_->Stop();
    pool_.Stop();
  }

  Status Start() {
    NetOptions net;
    net.tcp = options_.tcp;
    net.tls = options_.tls;
    net.log = options_.prefill.log;
    net.node.name = options_.name;
    net.node.role = NodeRole::kDecode;
    net.node.epoch = RandomNumber();
    net.node.layout = LayoutOf(engine_->info());
    net.node.codecs = CodecNames();
    LYNX_ASSIGN_OR_RETURN(net_, NetNode::Start(net, [this](TransferNode& node, TransferEvent event, TimeNs now) {
                            OnEvent(node, std::move(event), now);
                          }));
    loop_ = std::make_unique<EngineLoop>(engine_, EngineLoop::Options{options_.max_running, options_.max_waiting,
                                                                      options_.adapt_drafts, options_.slice_tokens});
    return pool_.Start(net_.get());
  }

  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel) {
    SpeculatorConfig speculation;
    LYNX_RETURN_IF_ERROR(Configure(request, &speculation));
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodec(CodecFor(request), engine_->info().shape));
    const auto run = std::make_shared<OneRequest>(this, request, speculation, std::move(codec), observer, cancel);
    LYNX_RETURN_IF_ERROR(loop_->Add(run));
    return run->Wait();
  }

  EngineLoopStats stats() const {
    EngineLoopStats stats = loop_->stats();
    stats.kept_bytes = kept_.bytes();
    return stats;
  }
  PrefillPool& pool() { return pool_; }

 private:
  std::string CodecFor(const GenerateRequest& request) const {
    if (request.codec != "auto") return request.codec;
    const double elements = double(engine_->info().shape.ElementsPerToken()) * double(request.prompt.size());
    return ChooseCodec({elements, rate_bps_, step_s_, options_.codec_threads});
  }

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

  // A request on the engine's thread.
  class OneRequest : public EngineLoop::Run {
   public:
    OneRequest(Impl* node, const GenerateRequest& request, const SpeculatorConfig& speculation,
               std::shared_ptr<const Codec> codec, GenerateObserver* observer, const std::atomic<bool>* cancel)
        : node_(node),
          request_(request),
          speculation_(speculation),
          codec_(std::move(codec)),
          observer_(observer),
          cancel_(cancel),
          retry_(node->options_.retries, request.deadline_ms, MonotonicNow()) {}

    Result<GenerateResult> Wait() { return result_.get_future().get(); }
    bool cancelled() const override { return stopped() || retry_.Expired(MonotonicNow()); }

    Result<std::unique_ptr<Lane>> Begin(SequenceId sequence) override {
      if (stopped()) return LimitExceeded("stopped before it began");
      const TimeNs now = MonotonicNow();
      if (retry_.Expired(now)) return LimitExceeded("deadline of the request has passed");
      if (!generation_) {
        KeptPrefix kept;
        if (request_.reuse) kept = node_->kept_.Find(codec_->info().spec, request_.prompt);
        generation_ = std::make_shared<Generation>(
            node_->engine_->info(), codec_, speculation_, request_.check, &node_->codec_threads_,
            [node = node_] { node->loop_->Wake(); }, std::move(kept), retry_.token0());
      }
      if (!node_->LinkHasRoom(*generation_)) return std::unique_ptr<Lane>();
      const Result<PeerId> peer = node_->pool_.Take(peer_);
      if (!peer.ok()) {
        LYNX_RETURN_IF_ERROR(retry_.OnNobody(peer.status(), now));
        return std::unique_ptr<Lane>();
      }
      peer_ = *peer;
      anchor_first_ = node_->AnchorFirst(*generation_, request_);
      const Result<RequestId> id = node_->Send(peer_, Wire(retry_.MillisecondsLeft(now)), generation_);
      if (!id.ok()) {  // it has just gone, or does not know the codec: others may be there
        node_->pool_.Give(peer_);
        LYNX_RETURN_IF_ERROR(retry_.OnNobody(id.status(), now));
        return std::unique_ptr<Lane>();
      }
      id_ = *id;
      retry_.OnBegin();
      if (sent_ == 0) sent_ = now;
      node_->begun_[*id_] = generation_;
      return std::make_unique<Lane>(node_->engine_, sequence, generation_.get(), request_, sent_, observer_, cancel_);
    }

    // As long as nothing but token 0 is committed the answer may begin again, on another cache, with that token.
    bool Retry(const Lane&, const Status& status) override {
      int committed = 0;
      const std::vector<Token> tokens = generation_->Tokens(&committed);
      if (cancelled() || !retry_.OnFailure(status, std::span(tokens).first(committed))) return false;
      Leave();
      generation_.reset();
      return true;
    }

    void End(SequenceId sequence, Lane* lane, const Status& status) override {
      Leave();
      if (!status.ok()) {
        const bool expired = !stopped() && sent_ == 0 && retry_.Expired(MonotonicNow());
        return result_.set_value(expired ? LimitExceeded("deadline of the request has passed before it began")
                                         : status);
      }
      const bool complete = lane->cache_complete();
      GenerateResult result = lane->Report();
      result.codec = codec_->info().spec;
      result.retries = retry_.count();
      result.anchor_first = anchor_first_;
      if (complete) Keep(sequence, result.tokens);
      const Status checked = request_.check && complete ? Check(sequence, &result) : Ok();
      result_.set_value(checked.ok() ? Result<GenerateResult>(std::move(result)) : checked);
    }

   private:
    bool stopped() const { return cancel_ != nullptr && *cancel_; }
    TransferRequest Wire(std::uint32_t deadline_ms) const {
      TransferRequest wire;
      wire.tokens = request_.prompt;
      wire.sampling = request_.sampling;
      wire.first_token = std::uint32_t(generation_->kept().tokens);
      wire.codec = codec_->info().spec;
      wire.deadline_ms = deadline_ms;
      wire.overlap = request_.overlap;
      wire.reuse = request_.reuse;
      wire.anchor_first = anchor_first_;
      return wire;
    }
    // The transfer is over, here and for the prefill node.
    void Leave() {
      if (!id_) return;
      node_->Release(*id_);
      if (const double rate = generation_->rate_bps(); rate > 0) node_->rate_bps_ = rate;
      const StepCost& cost = node_->loop_->step_cost();
      node_->step_s_ = cost.fixed_s() + cost.per_token_s();
      node_->begun_.erase(*id_);
      node_->pool_.Give(peer_);
      id_.reset();
    }
    // The prompt and the answer but for its newest token, which has no cell yet. Failing costs only what was to be
    // saved.
    void Keep(SequenceId sequence, const std::vector<Token>& answer) {
      std::vector<Token> tokens = request_.prompt;
      if (!answer.empty()) tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
      tokens.resize(std::min(tokens.size(), std::size_t(node_->engine_->Length(sequence))));
      (void)node_->kept_.Keep(node_->engine_, sequence, codec_->info().spec, std::move(tokens));
    }
    Status Check(SequenceId sequence, GenerateResult* result) {
      LYNX_ASSIGN_OR_RETURN(
          const Exactness exactness,
          CheckExactness(node_->engine_, sequence, *codec_, generation_->Received(), int(request_.prompt.size()),
                         result->tokens, request_.sampling, generation_->kept()));
      result->checked = true;
      result->exact = exactness.exact;
      result->difference = exactness.difference;
      return Ok();
    }

    Impl* const node_;
    const GenerateRequest& request_;
    const SpeculatorConfig speculation_;
    const std::shared_ptr<const Codec> codec_;
    GenerateObserver* const observer_;
    const std::atomic<bool>* const cancel_;
    std::shared_ptr<Generation> generation_;
    lynx::Retry retry_;
    PeerId peer_ = 0;  // the last one that was asked
    TimeNs sent_ = 0;  // the first time
    bool anchor_first_ = false;
    std::optional<RequestId> id_;
    std::promise<Result<GenerateResult>> result_;
  };

  Result<RequestId> Send(PeerId peer, const TransferRequest& wire, const std::shared_ptr<Generation>& generation) {
    Result<RequestId> id = IoError("not sent");
    net_->Call([&](TransferNode& node, TimeNs now) {
      id = node.Request(peer, wire, now);
      if (id.ok()) generations_[*id] = generation;
    });
    return id;
  }

  // --- engine thread ---
  // Of the link, as any request under way or the newest that has ended saw it; 0: not known.
  double LinkRate() const {
    double rate = rate_bps_;
    for (const auto& [id, generation] : begun_) rate = std::max(rate, generation->rate_bps());
    return rate;
  }

  bool LinkHasRoom(const Generation& next) const {
    const double rate = LinkRate();
    double left = 0;
    for (const auto& [id, generation] : begun_) left += double(generation->AnchorBytesLeft());
    return left == 0 || rate == 0 || (left + double(next.anchor_bytes())) * 8 <= rate * options_.anchors_s;
  }

  bool AnchorFirst(const Generation& next, const GenerateRequest& request) const {
    if (request.anchor_order != AnchorOrder::kAuto) return request.anchor_order == AnchorOrder::kFirst;
    LinkTurn turn;
    turn.anchor_bytes = double(next.anchor_bytes());
    turn.bytes_per_s = LinkRate() / 8;
    turn.residual_bytes = double(next.all_bytes() - next.anchor_bytes());
    for (const auto& [id, generation] : begun_) {
      const std::uint64_t left = generation->AllBytesLeft();
      turn.bytes_ahead += double(left);
      turn.ahead += left > 0 ? 1 : 0;
    }
    return AnchorFirstPays(loop_->step_cost(), loop_->survival(next.codec().spec), request.max_drafts, turn);
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
    if (const auto* up = std::get_if<PeerUp>(&event)) return pool_.OnUp(up->peer);
    if (const auto* down = std::get_if<PeerDown>(&event)) return pool_.OnDown(down->peer, down->status);
    const RequestId id = std::visit([](const auto& what) { return RequestOf(what); }, event);
    const auto found = generations_.find(id);
    if (found != generations_.end()) found->second->OnEvent(node, std::move(event), now, *engine_);
  }

  template <typename Event>
  static RequestId RequestOf(const Event& event) {
    if constexpr (requires { event.request; }) return event.request;
    return {};
  }

  Engine* const engine_;
  const DecodeOptions options_;
  std::map<RequestId, std::shared_ptr<Generation>> generations_;  // network thread
  std::map<RequestId, std::shared_ptr<Generation>> begun_;        // the same, engine thread
  KeptConversations kept_;                                        // engine thread
  std::atomic<double> rate_bps_ = 0;  // of the link, as the newest request saw it; 0: not known
  std::atomic<double> step_s_ = 0;    // of the engine, for one token; 0: not known
  std::unique_ptr<EngineLoop> loop_;
  CodecThreads codec_threads_;
  PrefillPool pool_;
  std::unique_ptr<NetNode> net_;
};

DecodeNode::DecodeNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeNode::~DecodeNode() = default;

Result<std::unique_ptr<DecodeNode>> DecodeNode::Start(Engine* engine, const DecodeOptions& options) {
  auto impl = std::make_unique<Impl>(engine, options);
  LYNX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<DecodeNode>(new DecodeNode(std::move(impl)));
}

Status DecodeNode::AwaitPrefill(TimeNs timeout) { return impl_->pool().Await(timeout); }
std::vector<PrefillNodeState> DecodeNode::PrefillNodes() const { return impl_->pool().States(); }

Result<GenerateResult> DecodeNode::Generate(const GenerateRequest& request, GenerateObserver* observer,
                                            const std::atomic<bool>* cancel) {
  return impl_->Generate(request, observer, cancel);
}

EngineLoopStats DecodeNode::stats() const { return impl_->stats(); }

}  // namespace lynx
