#include "serve/prefill_node.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "base/status_macros.h"
#include "lynx/codec.h"
#include "net/net_node.h"
#include "serve/codec_threads.h"
#include "serve/held_bytes.h"
#include "serve/kept_caches.h"
#include "serve/node_layout.h"
#include "serve/token_chooser.h"

namespace lynx {
namespace {

// Blocks that wait for the encoder: enough to keep it busy, few enough to bound memory.
constexpr std::size_t kQueuedBlocks = 4;
constexpr auto kStopInterval = std::chrono::milliseconds(100);

// A request as the serving thread sees it. `ended` is set by the network thread when the request is over on the wire.
struct Job {
  RequestId id;
  TransferRequest body;
  std::atomic<bool> ended = false;
  std::atomic<int> pages_left = 0;  // that have not been encoded
};
using SharedJob = std::shared_ptr<Job>;

// A job while it is served.
struct Work {
  SharedJob job;
  std::shared_ptr<const Codec> codec;
  KeptCaches::Lease lease;
  int encoded = 0;  // tokens before this one are handed to the encoder, or not wanted
  TimeNs start = 0;
};

}  // namespace

class PrefillNode::Impl {
 public:
  Impl(Engine* engine, const PrefillOptions& options)
      : engine_(engine),
        options_(options),
        kept_(engine, options.kept_caches),
        held_(options.max_held_bytes,
              [this] {
                const std::lock_guard lock(mutex_);
                freed_ = true;
                arrived_.notify_one();
              }),
        encoders_(options.codec_threads, kQueuedBlocks * 2 * engine->info().shape.layers.size()) {}

  Status Start() {
    if (engine_->info().max_sequences <= options_.kept_caches) {
      return Invalid("keeping " + std::to_string(options_.kept_caches) + " caches needs an engine with " +
                     std::to_string(options_.kept_caches + 1) + " sequences");
    }
    if (const Status fits = MakeCodec("raw", engine_->info().shape, profile()).status(); !fits.ok()) return fits;
    NetOptions net;
    net.listen = options_.listen;
    net.tcp = options_.tcp;
    net.tls = options_.tls;
    net.log = options_.log;
    net.node.name = options_.name;
    net.node.role = NodeRole::kPrefill;
    net.node.epoch = RandomNumber();
    net.node.layout = LayoutOf(engine_->info());
    net.node.limits.max_prompt_tokens = std::uint32_t(engine_->info().max_tokens);
    net.node.codecs = CodecNames();
    LYNX_ASSIGN_OR_RETURN(net_, NetNode::Start(net, [this](TransferNode& node, TransferEvent event, TimeNs now) {
                            OnEvent(node, std::move(event), now);
                          }));
    return Ok();
  }

  const std::string& listen_address() const { return net_->listen_address(); }
  std::uint64_t held_bytes() const { return held_.total(); }
  int open_requests() const {
    const std::lock_guard lock(mutex_);
    return int(jobs_.size());
  }

  void Run(const std::atomic<bool>& stop) {
    while (!MustEnd(stop) && !(stop_at_ != 0 && open_requests() == 0)) {
      EncodeWhatFits();
      const SharedJob job = NextJob();
      if (job == nullptr || job->ended) continue;
      if (const Status status = Serve(job, stop); !status.ok()) Abort(job->id, status);
    }
    for (const Work& work : unfinished_) kept_.Drop(work.lease.sequence);
    unfinished_.clear();
  }

 private:
  // Time to end, whatever is under way.
  bool MustEnd(const std::atomic<bool>& stop) {
    if (!stop) return false;
    if (stop_at_ == 0) {
      stop_at_ = MonotonicNow() + options_.drain;
      const std::lock_guard lock(mutex_);
      if (!jobs_.empty()) Log("stopping when " + std::to_string(jobs_.size()) + " requests are over");
    }
    return MonotonicNow() >= stop_at_;
  }

  const Profile* profile() const { return options_.profile ? &*options_.profile : nullptr; }

  void Log(const std::string& line) {
    if (options_.log) options_.log(line);
  }

  void Abort(RequestId id, const Status& status) {
    net_->Post([id, status](TransferNode& node, TimeNs now) { node.Abort(id, status, now); });
  }

  // The next request that can be served; null when there is none for a while, or when memory was freed. A peer whose
  // last request still waits for memory has to wait, and so has everybody when each of the engine's sequences is taken.
  SharedJob NextJob() {
    std::unique_lock lock(mutex_);
    auto next = queue_.end();
    const auto can_go_on = [&] {
      next = std::find_if(queue_.begin(), queue_.end(), [this](const SharedJob& job) {
        return std::none_of(unfinished_.begin(), unfinished_.end(),
                            [&](const Work& work) { return work.job->id.peer == job->id.peer; });
      });
      if (int(unfinished_.size()) >= engine_->info().max_sequences) next = queue_.end();
      return next != queue_.end() || freed_;
    };
    arrived_.wait_for(lock, kStopInterval, can_go_on);
    freed_ = false;
    if (next == queue_.end()) return nullptr;
    SharedJob job = *next;
    queue_.erase(next);
    return job;
  }

  // On the network thread.
  void OnEvent(TransferNode& node, TransferEvent event, TimeNs now) {
    if (auto* request = std::get_if<RequestArrived>(&event)) {
      auto job = std::make_shared<Job>();
      job->id = request->request;
      job->body = std::move(request->body);
      if (stop_at_ != 0) return node.Abort(job->id, IoError("the prefill node is stopping"), now);
      const std::lock_guard lock(mutex_);
      jobs_[job->id] = job;
      queue_.push_back(job);
      arrived_.notify_one();
    } else if (auto* finished = std::get_if<RequestFinished>(&event)) {
      if (!finished->status.ok()) {
        Log("request " + std::to_string(finished->request.id) + " ended early: " + finished->status.message() + "; " +
            std::to_string(node.OpenRequests()) + " open");
      }
      const std::lock_guard lock(mutex_);
      const auto found = jobs_.find(finished->request);
      if (found == jobs_.end()) return;
      found->second->ended = true;
      std::erase(queue_, found->second);  // with its prompt: what waits is bounded by the requests that are open
      jobs_.erase(found);
    }
  }

  Status Check(const TransferRequest& request) const {
    const EngineInfo& info = engine_->info();
    if (request.tokens.empty()) return Invalid("the prompt is empty");
    for (Token token : request.tokens) {
      if (token < 0 || token >= info.vocab_size)
        return Invalid("token " + std::to_string(token) + " is not in the vocabulary");
    }
    return CheckSampling(request.sampling);
  }

  // From the offer to token 0; the pages go to the encoder as memory allows, now or later.
  Status Serve(const SharedJob& job, const std::atomic<bool>& stop) {
    const TimeNs start = MonotonicNow();
    const TransferRequest& request = job->body;
    LYNX_RETURN_IF_ERROR(Check(request));
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Codec> made, MakeCodec(request.codec, engine_->info().shape, profile()));
    const std::shared_ptr<const Codec> codec = std::move(made);
    const int first = int(request.first_token);
    const int count = int(request.tokens.size()) - first;
    job->pages_left = int(PagesIn(*codec, first, count).size());
    net_->Post([id = job->id, offer = OfferFor(*codec, first, count)](TransferNode& node, TimeNs now) {
      if (const Status status = node.Offer(id, offer, now); !status.ok()) node.Abort(id, status, now);
    });

    LYNX_ASSIGN_OR_RETURN(KeptCaches::Lease lease, kept_.Take(request.tokens, request.reuse));
    Work work{job, codec, std::move(lease), first, start};
    Status status = Prefill(&work, stop);
    if (!status.ok()) {
      kept_.Drop(work.lease.sequence);
      return status;
    }
    SendToken0(work);
    unfinished_.push_back(std::move(work));
    return Ok();
  }

  // Hands pages to the encoder as far as memory allows; the cache of a prompt that is done with is kept.
  void EncodeWhatFits() {
    std::erase_if(unfinished_, [this](Work& work) {
      const std::vector<Token>& tokens = work.job->body.tokens;
      const Status status = EncodeTo(&work, int(tokens.size()));
      if (!status.ok()) {
        Abort(work.job->id, status);
        kept_.Drop(work.lease.sequence);
        return true;
      }
      if (work.encoded < int(tokens.size()) && !work.job->ended) return false;
      kept_.Keep(work.lease.sequence, tokens, std::move(work.lease.logits));
      return true;
    });
  }

  TransferOffer OfferFor(const Codec& codec, int first_token, int tokens) const {
    const CacheShape& shape = engine_->info().shape;
    TransferOffer offer;
    offer.stream_count = std::uint32_t(codec.info().stream_count);
    offer.first_token = std::uint32_t(first_token);
    offer.token_count = std::uint32_t(tokens);
    offer.elements = std::uint64_t(shape.ElementsPerToken()) * std::uint64_t(tokens);
    offer.max_bytes = MostStreamBytes(codec, shape, first_token, tokens);
    return offer;
  }

  // Runs the prompt batch by batch; with overlap, pages go to the encoder as soon as the batch that completes them
  // returns.
  Status Prefill(Work* work, const std::atomic<bool>& stop) {
    const std::vector<Token>& tokens = work->job->body.tokens;
    const int count = int(tokens.size());
    const int page_tokens = work->codec->info().page_tokens;
    const int batch = engine_->info().prefill_batch;
    for (int at = work->lease.reused;;) {
      if (work->job->body.overlap) LYNX_RETURN_IF_ERROR(EncodeTo(work, at / page_tokens * page_tokens));
      if (at == count) return Ok();
      EncodeWhatFits();
      if (work->job->ended) return IoError("the decode node left");
      if (MustEnd(stop)) return IoError("the prefill node is stopping");
      // Batches end at page boundaries so that no finished page waits for the next batch.
      const int boundary = (at + batch) / page_tokens * page_tokens;
      const int end = std::min(count, boundary > at ? boundary : at + batch);
      const StepInput input{work->lease.sequence, std::span(tokens).subspan(at, end - at),
                            end == count ? Logits::kLast : Logits::kNone};
      LYNX_RETURN_IF_ERROR(StepWithRoom(input, &work->lease.logits));
      at = end;
    }
  }

  // A step; when the cache is full of kept prompts, the oldest make room.
  Status StepWithRoom(const StepInput& input, std::vector<float>* logits) {
    Status status = engine_->Step(std::span(&input, 1), logits);
    while (status.code() == ErrorCode::kLimit && kept_.ForgetOne())
      status = engine_->Step(std::span(&input, 1), logits);
    return status;
  }

  void SendToken0(const Work& work) {
    const TransferRequest& request = work.job->body;
    const RequestId id = work.job->id;
    PrefillDone done;
    done.token0 = SampleToken(work.lease.logits, request.sampling, 0);
    done.reused_tokens = std::uint32_t(work.lease.reused);
    done.prefill_ns = MonotonicNow() - work.start;
    net_->Post([id, done](TransferNode& node, TimeNs now) { (void)node.SendPrefillDone(id, done, now); });
    char line[160];
    std::snprintf(line, sizeof line, "request %llu: %zu tokens, %u from a kept cache, %.2f s, codec %s",
                  static_cast<unsigned long long>(id.id), request.tokens.size(), done.reused_tokens,
                  double(done.prefill_ns) / kSecondNs, work.codec->info().spec.c_str());
    Log(line);
  }

  // Hands tokens [work->encoded, target) to the encoders, a page's tokens at a time, until they or memory are at an
  // end. What will be encoded counts with its upper bound.
  Status EncodeTo(Work* work, int target) {
    const int page_tokens = work->codec->info().page_tokens;
    const PeerId peer = work->job->id.peer;
    while (work->encoded < target && !work->job->ended && held_.MayGrow(peer)) {
      const int end = std::min(target, (work->encoded / page_tokens + 1) * page_tokens);
      auto block = std::make_shared<CacheBlock>(engine_->info().shape, work->encoded, end - work->encoded);
      LYNX_RETURN_IF_ERROR(engine_->ReadBlock(work->lease.sequence, block.get()));
      for (const PageAddress& address : PagesIn(*work->codec, work->encoded, end - work->encoded)) {
        const auto hold = held_.Hold(peer, MaxBytes(*work->codec, address));
        encoders_.Post([this, job = work->job, codec = work->codec, block, address, hold](auto& scratch) {
          EncodePage(job, *codec, *block, address, &scratch);
        });
      }
      work->encoded = end;
    }
    return Ok();
  }

  std::vector<PageAddress> PagesIn(const Codec& codec, int first_token, int tokens) const {
    const CodecInfo& info = codec.info();
    return PagesOf(engine_->info().shape, first_token, tokens, info.page_tokens, info.heads_per_page);
  }

  // Of the page's streams together.
  std::uint64_t MaxBytes(const Codec& codec, const PageAddress& address) const {
    const PageShape dims = ShapeOf(engine_->info().shape, address);
    std::uint64_t bytes = 0;
    for (int stream = 0; stream < codec.info().stream_count; ++stream) bytes += codec.MaxBytes(dims, stream);
    return bytes;
  }

  // On an encoder thread: page i travels while page i + 1 is encoded. The last one ends the streams.
  void EncodePage(const SharedJob& job, const Codec& codec, const CacheBlock& block, const PageAddress& address,
                  CodecThreads::Scratch* scratch) {
    if (job->ended) return;
    if (const Status status = PushPage(job, codec, block, address, scratch); !status.ok()) {
      return Abort(job->id, status);
    }
    if (--job->pages_left > 0) return;
    net_->Post([id = job->id, streams = codec.info().stream_count](TransferNode& node, TimeNs now) {
      for (int stream = 0; stream < streams; ++stream) (void)node.EndStream(id, 0, stream, now);
    });
  }

  Status PushPage(const SharedJob& job, const Codec& codec, const CacheBlock& block, const PageAddress& address,
                  CodecThreads::Scratch* scratch) {
    LYNX_ASSIGN_OR_RETURN(PageView page, block.Page(address));
    page.tokens_after = int(job->body.tokens.size()) - address.first_token - address.token_count;
    const PageShape dims = ShapeOf(block.shape(), address);
    const int streams = codec.info().stream_count;
    // Encoded behind the codec's scratch, then copied: what waits takes no byte more than it has.
    const std::size_t scratch_bytes = codec.ScratchBytes(dims);
    scratch->resize(std::max(scratch->size(), scratch_bytes + MaxBytes(codec, address)));
    std::vector<std::span<std::byte>> buffers(streams);
    std::vector<std::size_t> sizes(streams);
    std::size_t at = scratch_bytes;
    for (int stream = 0; stream < streams; ++stream) {
      buffers[stream] = std::span(*scratch).subspan(at, codec.MaxBytes(dims, stream));
      at += buffers[stream].size();
    }
    LYNX_RETURN_IF_ERROR(codec.Encode(page, buffers, sizes, std::span(*scratch).first(scratch_bytes)));
    std::vector<SharedBytes> outputs;
    for (int stream = 0; stream < streams; ++stream) {
      outputs.push_back(held_.Keep(job->id.peer, buffers[stream].first(sizes[stream])));
    }
    net_->Post([id = job->id, address, outputs = std::move(outputs)](TransferNode& node, TimeNs now) {
      for (int stream = 0; stream < int(outputs.size()); ++stream) {
        // Refused when the decode node takes no page this long, or when the request is over (then nothing is aborted).
        const Status status = node.PushPage(id, 0, stream, address, outputs[stream], now);
        if (!status.ok()) node.Abort(id, status, now);
      }
    });
    return Ok();
  }

  Engine* const engine_;
  const PrefillOptions options_;
  KeptCaches kept_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<SharedJob> queue_;
  std::map<RequestId, SharedJob> jobs_;
  std::atomic<TimeNs> stop_at_ = 0;  // at the latest; 0: not yet to stop
  bool freed_ = false;               // memory, since the serving thread looked
  std::vector<Work> unfinished_;     // prefilled; pages wait for memory to be encoded (serving thread)
  HeldBytes held_;
  // Threads end before what they use: the encoders use the network, the network all of the above.
  std::unique_ptr<NetNode> net_;
  CodecThreads encoders_;
};

PrefillNode::PrefillNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefillNode::~PrefillNode() = default;

Result<std::unique_ptr<PrefillNode>> PrefillNode::Start(Engine* engine, const PrefillOptions& options) {
  auto impl = std::make_unique<Impl>(engine, options);
  LYNX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<PrefillNode>(new PrefillNode(std::move(impl)));
}

const std::string& PrefillNode::listen_address() const { return impl_->listen_address(); }
std::uint64_t PrefillNode::held_bytes() const { return impl_->held_bytes(); }
int PrefillNode::open_requests() const { return impl_->open_requests(); }
void PrefillNode::Run(const std::atomic<bool>& stop) { impl_->Run(stop); }

}  // namespace lynx
