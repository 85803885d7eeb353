#include "serve/generation.h"

#include <algorithm>

#include "base/status_macros.h"
#include "net/socket.h"
#include "serve/node_layout.h"
#include "speculate/window.h"

namespace lynx {

Generation::Generation(const EngineInfo& engine, std::shared_ptr<const Codec> codec,
                       const SpeculatorConfig& speculation, bool keep_streams, CodecThreads* codec_threads,
                       std::function<void()> wake, KeptPrefix kept, std::optional<Token> token0)
    : shape_(engine.shape),
      codec_(std::move(codec)),
      kept_(std::move(kept)),
      tokens_(speculation.prompt_tokens - kept_.tokens),
      codec_threads_(codec_threads),
      wake_(std::move(wake)),
      token0_(token0),
      session_(engine.shape, codec_->info(), speculation, keep_streams, kept_.tokens),
      staging_(std::make_unique<CacheBlock>(engine.shape, kept_.tokens, tokens_)) {
  record_.stream_done.resize(codec_->info().stream_count);
  record_.stream_bytes.resize(codec_->info().stream_count);
  record_.stream_wire_bytes.resize(codec_->info().stream_count);
  for (const PageAddress& page : Pages()) {
    expected_anchor_bytes_ += codec_->ExpectedBytes(ShapeOf(shape_, page), 0);
    for (int stream = 0; stream <= last_stream(); ++stream) {
      expected_bytes_ += codec_->ExpectedBytes(ShapeOf(shape_, page), stream);
    }
  }
}

std::vector<PageAddress> Generation::Pages() const {
  return PagesOf(shape_, kept_.tokens, tokens_, codec_->info().page_tokens, codec_->info().heads_per_page);
}

void Generation::OnEvent(TransferNode& node, TransferEvent event, TimeNs now, const Engine& engine) {
  {
    const std::lock_guard lock(mutex_);
    if (const Status status = Take(node, event, now, engine); !status.ok()) Fail(status);
    PostJobs();
  }
  wake_();
}

// An error means that the peer broke the transfer's rules: it is told by ABORT.
Status Generation::Take(TransferNode& node, TransferEvent& event, TimeNs now, const Engine& engine) {
  const auto or_abort = [&](RequestId id, Status status) {
    if (!status.ok()) node.Abort(id, status, now);
    return status;
  };
  if (auto* offer = std::get_if<OfferArrived>(&event)) {
    LYNX_RETURN_IF_ERROR(or_abort(offer->request, CheckOffer(offer->offer)));
    LYNX_RETURN_IF_ERROR(or_abort(offer->request, session_.OnOffer(offer->offer)));
    // Fails only if the request has ended meanwhile; that event follows, with the reason.
    (void)node.AcceptOffer(offer->request, now);
    return Ok();
  }
  if (auto* done = std::get_if<PrefillDoneArrived>(&event)) {
    if (done->done.token0 < 0 || done->done.token0 >= engine.info().vocab_size) {
      return or_abort(done->request,
                      Corrupt("token 0 is " + std::to_string(done->done.token0) + ", which is not in the vocabulary"));
    }
    record_.prefill_done = now;
    record_.prefill = done->done;
    const Token token0 = token0_.value_or(done->done.token0);
    return or_abort(done->request, session_.OnPrefillDone(token0, engine.IsEndOfText(token0)));
  }
  if (auto* page = std::get_if<PageArrived>(&event)) {
    const double rate = node.Stats(page->request.peer).receive_rate_bps;
    if (rate > 0) rate_bps_ = rate;
    const Status status = session_.OnPage(page->stream, page->address, std::move(page->bytes));
    peak_held_bytes_ = std::max(peak_held_bytes_, session_.bytes_held());
    return or_abort(page->request, status);
  }
  if (auto* completed = std::get_if<StreamCompleted>(&event)) {
    record_.stream_done[completed->stream] = now;
    record_.stream_bytes[completed->stream] = completed->bytes;
    record_.stream_wire_bytes[completed->stream] = completed->wire_bytes;
    if (completed->stream == 0) record_.first_grant = completed->first_grant_ns;
    return or_abort(completed->request, session_.OnStreamCompleted(completed->stream));
  }
  if (auto* finished = std::get_if<RequestFinished>(&event)) return finished->status;
  return Ok();
}

// No offer may ask for more than this codec can need for these tokens.
Status Generation::CheckOffer(const TransferOffer& offer) const {
  const CodecInfo& info = codec_->info();
  if (offer.max_bytes.size() != std::size_t(info.stream_count)) return Ok();  // named by the session
  const std::vector<std::uint64_t> most = MostStreamBytes(*codec_, shape_, kept_.tokens, tokens_);
  for (int stream = 0; stream < info.stream_count; ++stream) {
    if (offer.max_bytes[stream] > most[stream]) {
      return LimitExceeded("offer of " + std::to_string(offer.max_bytes[stream]) + " bytes for stream " +
                           std::to_string(stream) + " exceeds the codec's bound of " + std::to_string(most[stream]));
    }
  }
  return Ok();
}

void Generation::PostJobs() {
  while (std::optional<PageJob> job = session_.NextPageJob()) {
    codec_threads_->Post([self = shared_from_this(), job = std::move(*job)](CodecThreads::Scratch& scratch) {
      self->Decode(job, &scratch);
    });
  }
}

// On a codec thread. The staging block's pages are disjoint and the engine reads it only at rest, so no lock is held.
void Generation::Decode(const PageJob& job, CodecThreads::Scratch* scratch) {
  Status status;
  std::vector<std::span<const std::byte>> streams;
  for (const SharedBytes& bytes : job.streams) streams.push_back(*bytes);
  const Result<PageSpan> page = staging_->Page(job.address);
  if (page.ok()) {
    scratch->resize(std::max(scratch->size(), codec_->ScratchBytes(ShapeOf(shape_, job.address))));
    status = codec_->Decode(streams, *page, *scratch);
    // What does not fit the codec's contract came from the peer; kInvalid is for what the caller asked.
    if (status.code() == ErrorCode::kInvalid) status = Corrupt(status.message());
  } else {
    status = page.status();
  }
  {
    const std::lock_guard lock(mutex_);
    if (status.ok()) status = session_.OnPageDecoded(job.address, job.level);
    if (!status.ok()) Fail(status);
    PostJobs();
  }
  wake_();
}

void Generation::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

Result<SpeculatorAction> Generation::Next() {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  SpeculatorAction action = session_.Next();
  PostJobs();
  return action;
}

Status Generation::On(const SpeculatorEvent& event) {
  const std::lock_guard lock(mutex_);
  LYNX_RETURN_IF_ERROR(session_.On(event));
  PostJobs();
  return Ok();
}

void Generation::UpdateWindow(TimeNs now, TimeNs step, int max_drafts) {
  const std::lock_guard lock(mutex_);
  std::optional<TimeNs> arrival;
  if (session_.AllStreamsReceived()) {
    arrival = now;
  } else if (rate_bps_) {
    arrival = now + TimeNs(double(Estimate().bytes_left()) * 8 / *rate_bps_ * double(kSecondNs));
  }
  const Speculator& speculator = session_.speculator();
  const int standing = int(speculator.tokens().size()) - speculator.committed();
  (void)session_.On(DraftWindow{DraftsAllowed(now, arrival, step, standing, max_drafts)});
}

TransferProgress Generation::Progress() const {
  const std::lock_guard lock(mutex_);
  return Estimate();
}

std::uint64_t Generation::AnchorBytesLeft() const {
  const std::lock_guard lock(mutex_);
  const TransferProgress progress = session_.Progress();
  if (progress.stream > 0 || !failure_.ok()) return 0;
  return expected_anchor_bytes_ - std::min(progress.bytes_received, expected_anchor_bytes_);
}

std::uint64_t Generation::AllBytesLeft() const {
  const std::lock_guard lock(mutex_);
  if (session_.AllStreamsReceived() || !failure_.ok()) return 0;
  return expected_bytes_ - std::min(session_.Progress().bytes_received, expected_bytes_);
}

double Generation::rate_bps() const {
  const std::lock_guard lock(mutex_);
  return rate_bps_.value_or(0);
}

// The offer's bounds cover pages that can only travel exactly; what usually comes is far less.
TransferProgress Generation::Estimate() const {
  TransferProgress progress = session_.Progress();
  if (progress.bytes_expected > 0) progress.bytes_expected = expected_bytes_;
  progress.prompt_read = record_.prefill_done != 0;
  return progress;
}

std::vector<Token> Generation::Tokens(int* committed) const {
  const std::lock_guard lock(mutex_);
  *committed = session_.speculator().committed();
  return session_.speculator().tokens();
}

std::uint64_t Generation::peak_held_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_held_bytes_;
}

TransferRecord Generation::Record() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

void Generation::Counts(int* drafted, int* accepted) const {
  const std::lock_guard lock(mutex_);
  *drafted = session_.speculator().drafted_total();
  *accepted = session_.speculator().accepted_total();
}

std::map<PageAddress, std::vector<SharedBytes>> Generation::Received() const {
  const std::lock_guard lock(mutex_);
  return session_.Received();
}

}  // namespace lynx
