#include "sim/sim_prefill.h"

#include <algorithm>

namespace lynx {
namespace {

// A page stream that counts as long as anybody holds it.
SharedBytes Counted(SharedBytes bytes, const std::shared_ptr<std::uint64_t>& live) {
  *live += bytes->size();
  const std::vector<std::byte>* held = bytes.get();
  return {held, [bytes = std::move(bytes), live](const std::vector<std::byte>*) { *live -= bytes->size(); }};
}

}  // namespace

NodeConfig SimPrefill::Config() const {
  NodeConfig config;
  config.limits.max_requests = max_requests_;
  config.limits.max_frame_bytes = kMinFrameBytes;
  return config;
}

void SimPrefill::OnKilled() {
  queue_.clear();
  for (const auto& [id, job] : jobs_) job->ended = true;
  jobs_.clear();
  harmed_.clear();
  busy_ = false;
  live_bytes_ = std::make_shared<std::uint64_t>(0);
}

void SimPrefill::OnEvent(TransferEvent event) {
  if (auto* arrived = std::get_if<RequestArrived>(&event)) {
    auto job = std::make_shared<Job>();
    job->id = arrived->request;
    job->body = std::move(arrived->body);
    job->due = Now() + TimeNs(job->body.deadline_ms) * kMillisecondNs;
    jobs_[job->id] = job;
    queue_.push_back(job);
    Serve();
  } else if (const auto* finished = std::get_if<RequestFinished>(&event)) {
    const auto found = jobs_.find(finished->request);
    if (found == jobs_.end()) return world().Violate("P3", name() + ": a request ends that is not open");
    found->second->ended = true;
    if (Now() > found->second->due + 2 * kSecondNs + stopped_ns()) {
      world().Violate("P3", name() + ": a transfer ends long after its deadline");
    }
    std::erase(queue_, found->second);
    jobs_.erase(found);
    harmed_.erase(finished->request);
  }
}

void SimPrefill::Serve() {
  if (busy_ || queue_.empty()) return;
  const SharedJob job = queue_.front();
  queue_.pop_front();
  Begin(job);
}

void SimPrefill::Fail(const SharedJob& job, const Status& why) {
  if (!job->ended) transfer().Abort(job->id, why, Now());
}

// Offer at once, pages while the prompt is read (or all behind it), then PREFILL_DONE; encoding takes a while more.
void SimPrefill::Begin(const SharedJob& job) {
  World& w = world();
  job->prompt = PromptHash(job->body.tokens);
  job->streams = job->body.codec.back() - '0';
  job->parts = int(w.Between(1, 2));
  job->pages = SimPages(int(job->body.tokens.size()));
  job->pages_left = int(job->pages.size());
  TransferOffer offer;
  offer.stream_count = std::uint32_t(job->streams);
  offer.part_count = std::uint32_t(job->parts);
  offer.token_count = std::uint32_t(job->body.tokens.size());
  offer.max_bytes.assign(std::size_t(job->streams), std::uint64_t(w.Between(0, 100)));
  for (const PageAddress& address : job->pages) {
    for (int stream = 0; stream < job->streams; ++stream) {
      offer.max_bytes[std::size_t(stream)] += SimPageStream(epoch(), job->prompt, address, stream)->size();
    }
  }
  for (const std::uint64_t bytes : offer.max_bytes) job->offered += bytes;
  if (!harms_.empty()) {
    harmed_[job->id] = harms_.front();
    FindConnection(job->id.peer)->harmed_requests.insert(job->id.id);
    w.Note(harms_.front());
    if (w.logs()) Log(std::string("FAULT ").append(SeenName(harms_.front())));
    harms_.pop_front();
  }
  if (const Status status = transfer().Offer(job->id, offer, Now()); !status.ok()) return Fail(job, status);
  tap().OnOffer(job->id, job->streams, job->body.anchor_first);

  busy_ = true;
  const TimeNs token_cost = w.Magnitude(1'000, 2 * kMillisecondNs);
  const TimeNs total = token_cost * TimeNs(job->body.tokens.size());
  const auto harm = harmed_.find(job->id);
  const bool fails = harm != harmed_.end() && harm->second == Seen::kPrefillFailed;
  if (fails) After(total / 2, [this, job] { Fail(job, EngineError("prefill failed")); });
  After(total, [this, job] {
    busy_ = false;
    if (!job->ended) {
      const PrefillDone done{.token0 = SimToken0(epoch(), job->prompt), .reused_tokens = 0, .prefill_ns = 1};
      (void)transfer().SendPrefillDone(job->id, done, Now());
    }
    Serve();
  });
  PlanPages(job, token_cost, total);
}

void SimPrefill::PlanPages(const SharedJob& job, TimeNs token_cost, TimeNs total) {
  for (const PageAddress& address : job->pages) {
    const TimeNs read = job->body.overlap ? token_cost * (address.first_token + address.token_count) : total;
    After(read + world().Magnitude(1'000, 5 * kMillisecondNs), [this, job, address] { PushPage(job, address); });
  }
}

bool SimPrefill::IsHeldBack(const Job& job, const PageAddress& address, int stream) const {
  const auto harm = harmed_.find(job.id);
  if (harm == harmed_.end() || harm->second == Seen::kPrefillFailed) return false;
  const bool last_page = address == job.pages.back();
  if (harm->second == Seen::kPageMissing) return last_page && stream == job.streams - 1;
  return job.streams == 1 ? last_page : stream > 0;
}

void SimPrefill::PushPage(const SharedJob& job, const PageAddress& address) {
  if (job->ended) return;
  bool complete = true;
  const int first = int(world().Below(std::uint64_t(job->streams)));  // streams come in any order
  for (int i = 0; i < job->streams; ++i) {
    const int stream = (first + i) % job->streams;
    if (IsHeldBack(*job, address, stream)) {
      complete = complete && harmed_.at(job->id) == Seen::kPageMissing;
      continue;
    }
    SharedBytes bytes = Counted(SimPageStream(epoch(), job->prompt, address, stream), live_bytes_);
    job->pushed += bytes->size();
    std::uint64_t& largest = job->largest[{PartOf(*job, address), stream}];
    largest = std::max(largest, bytes->size());
    const Status status = transfer().PushPage(job->id, PartOf(*job, address), stream, address, std::move(bytes), Now());
    if (!status.ok()) return Fail(job, status);
  }
  if (!complete) job->pages_left += 1;  // never
  if (--job->pages_left > 0) return;
  for (int part = 0; part < job->parts; ++part) {
    for (int stream = 0; stream < job->streams; ++stream) {
      if (const Status status = transfer().EndStream(job->id, part, stream, Now()); !status.ok()) Fail(job, status);
    }
  }
}

// P4. Page streams are held for open requests only, and those not that have arrived: of each part of a stream all but
// what is acknowledged, rounded up to a whole page.
void SimPrefill::CheckMemory() {
  std::uint64_t bound = 0;
  for (const auto& [id, job] : jobs_) {
    const auto acknowledged = tap().Acknowledged(id);
    bound += job->pushed;
    if (!acknowledged) continue;
    for (const auto& [where, bytes] : job->largest) bound += bytes;
    bound -= *acknowledged;
  }
  if (*live_bytes_ > bound) {
    world().Violate("P4", name() + " holds " + std::to_string(*live_bytes_) +
                              " bytes of page streams, its open requests " + "allow " + std::to_string(bound));
  }
}

std::string SimPrefill::Held() const {
  std::string held = SimNode::Held();
  if (!jobs_.empty()) held += std::to_string(jobs_.size()) + " jobs; ";
  if (*live_bytes_ > 0) held += std::to_string(*live_bytes_) + " bytes of page streams; ";
  return held;
}

}  // namespace lynx
