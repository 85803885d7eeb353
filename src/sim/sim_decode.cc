// The decode node towards the network: links to prefill nodes, transfers, codec threads.
#include "sim/sim_decode.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"

namespace lynx {
namespace {

constexpr TimeNs kConnectTimeout = 2 * kSecondNs;
constexpr TimeNs kDetection = 2 * kSecondNs;

}  // namespace

SimDecode::Try::Try(SimRequest* of, std::shared_ptr<int> live_tries)
    : request(of), session(SimShape(), SimCodec(of->streams), of->speculation, false), live(std::move(live_tries)) {
  ++*live;
}

NodeConfig SimDecode::Config() const {
  NodeConfig config;
  config.limits.max_frame_bytes = kMinFrameBytes;
  config.window_bytes = plan_.window_bytes;
  return config;
}

void SimDecode::OnStart() {
  links_.assign(std::size_t(prefills_), {});
  for (int prefill = 0; prefill < prefills_; ++prefill) DialSoon(prefill, 0);
}

void SimDecode::OnKilled() {
  for (const auto& lane : lanes_) {
    lane->request->node_gone = true;
    End(lane->request, IoError("decode node is gone"));
  }
  for (const Waiting& waiting : waiting_) {
    waiting.request->node_gone = true;
    End(waiting.request, IoError("decode node is gone"));
  }
  lanes_.clear();
  waiting_.clear();
  tries_.clear();
  open_.clear();
  links_.clear();
  pages_.clear();
  engine_busy_ = wake_set_ = false;
  live_tries_ = std::make_shared<int>(0);
}

Connection* SimDecode::ConnectionTo(int prefill) const {
  return alive() ? links_[std::size_t(prefill)].connection : nullptr;
}

// --- links ---

void SimDecode::DialSoon(int prefill, TimeNs pause) {
  links_[std::size_t(prefill)].dialling = true;
  After(pause + world().Magnitude(100'000, 40 * kMillisecondNs), [this, prefill] {
    Link& link = links_[std::size_t(prefill)];
    link.dialling = false;
    link.connection = dial_(this, prefill);
    if (link.connection == nullptr) {
      ++link.failures;
      DialSoon(prefill,
               ReconnectPause(link.failures - 1, &world().random()) + (world().Chance(0.2) ? kConnectTimeout : 0));
    }
  });
}

void SimDecode::OnLinkDown(Link* link) {
  if (link->dialling) return;
  const TimeNs pause = ReconnectPause(link->failures++, &world().random());
  link->up = false;
  link->running = 0;
  link->connection = nullptr;
  DialSoon(int(link - links_.data()), pause);
}

void SimDecode::OnPeerGone(Connection* connection) {
  const auto link = std::ranges::find(links_, connection, &Link::connection);
  if (link != links_.end()) OnLinkDown(&*link);
}

// The one with the fewest requests, by what it says and by what was sent to it; not the last one if there is another.
Result<int> SimDecode::ChooseLink(PeerId avoid) const {
  std::map<PeerId, int> loads;
  for (const Link& link : links_) {
    if (link.up) loads[FindPeer(link.connection)] = link.running;
  }
  if (loads.empty()) return IoError("no prefill node is up");
  if (loads.size() > 1) loads.erase(avoid);
  const auto least = std::ranges::min_element(loads, {}, [](const auto& entry) { return entry.second; });
  const auto link = std::ranges::find(links_, FindConnection(least->first), &Link::connection);
  return int(link - links_.begin());
}

// --- transfers ---

void SimDecode::OnEvent(TransferEvent event) {
  if (const auto* up = std::get_if<PeerUp>(&event)) {
    const auto link = std::ranges::find(links_, FindConnection(up->peer), &Link::connection);
    if (link == links_.end()) return;
    link->up = true;
    link->failures = 0;
    return;
  }
  if (const auto* down = std::get_if<PeerDown>(&event)) {
    const Connection* connection = FindConnection(down->peer);
    const auto link = std::ranges::find(links_, connection, &Link::connection);
    if (connection != nullptr && link != links_.end()) OnLinkDown(&*link);
    return;
  }
  const RequestId id = std::visit(
      [](const auto& what) {
        if constexpr (requires { what.request; }) return what.request;
        return RequestId{};
      },
      event);
  if (const auto* finished = std::get_if<RequestFinished>(&event)) CheckFinished(id, finished->status);
  const auto found = tries_.find(id);
  if (found == tries_.end()) return;
  const SharedTry now = found->second;
  const Status status = Take(now.get(), event);
  if (!status.ok() && now->failure.ok()) now->failure = status;
  if (!status.ok()) transfer().Abort(id, status, Now());
  PostJobs(now);
}

// P3, on the wire: one end each, in time.
void SimDecode::CheckFinished(RequestId id, const Status& status) {
  if (open_.erase(id) == 0) world().Violate("P3", name() + ": a transfer ends twice");
  const auto found = tries_.find(id);
  if (found == tries_.end()) return;
  Try& now = *found->second;
  if (status.ok()) now.request->transferred = true;
  if (status.ok() && transfer().Stats(id.peer).naks > 0) world().Note(Seen::kPageResent);
  if (Now() > now.due + kDetection + stopped_ns()) {
    world().Violate("P3", name() + ": a transfer ends " + std::to_string((Now() - now.due) / kMillisecondNs) +
                              " ms after its deadline");
  }
}

Status SimDecode::Take(Try* now, TransferEvent& event) {
  if (const auto* offer = std::get_if<OfferArrived>(&event)) return TakeOffer(now, *offer);
  if (const auto* done = std::get_if<PrefillDoneArrived>(&event)) {
    const Token token0 = done->done.token0;
    if (token0 < 0 || token0 >= kSimVocab) return Corrupt("token 0 is not in the vocabulary");
    if (token0 != SimToken0(now->connection->source, PromptHash(now->request->prompt))) {
      world().Violate("P1", name() + " takes a token 0 that nobody has chosen for " + now->request->Name());
    }
    const Token shown = now->token0.value_or(token0);
    return now->session.OnPrefillDone(shown, EndsText(shown));
  }
  if (auto* page = std::get_if<PageArrived>(&event)) return TakePage(now, *page);
  if (const auto* completed = std::get_if<StreamCompleted>(&event)) {
    NoteCompleted(*now, completed->stream);
    return now->session.OnStreamCompleted(completed->stream);
  }
  if (const auto* finished = std::get_if<RequestFinished>(&event)) return finished->status;
  return Ok();
}

Status SimDecode::TakeOffer(Try* now, const OfferArrived& arrived) {
  const TransferOffer& offer = arrived.offer;
  const std::uint64_t most = SimPages(int(now->request->prompt.size())).size() * std::uint64_t{kSimPageBytes};
  if (std::ranges::any_of(offer.max_bytes, [most](std::uint64_t bytes) { return bytes > most; })) {
    return LimitExceeded("offer exceeds the codec's bound");
  }
  LYNX_RETURN_IF_ERROR(now->session.OnOffer(offer));
  now->offered = std::accumulate(offer.max_bytes.begin(), offer.max_bytes.end(), std::uint64_t{0});
  (void)transfer().AcceptOffer(arrived.request, Now());
  return Ok();
}

// P1: these are the bytes that the prefill node at the other end, in the life that this connection leads to, made for
// this prompt, page and stream.
Status SimDecode::TakePage(Try* now, PageArrived& page) {
  const SharedBytes sent =
      SimPageStream(now->connection->source, PromptHash(now->request->prompt), page.address, page.stream);
  if (*page.bytes != *sent)
    world().Violate("P1", name() + " takes bytes of a page that nobody sent for " + now->request->Name());
  pages_.push_back(page.bytes);
  return now->session.OnPage(page.stream, page.address, std::move(page.bytes));
}

void SimDecode::NoteCompleted(const Try& now, int stream) {
  if (stream == 0) return;
  const auto lane = std::ranges::find_if(lanes_, [&now](const auto& one) { return one->now.get() == &now; });
  if (lane == lanes_.end()) return;
  const Speculator& speculator = now.session.speculator();
  const int standing = int(speculator.tokens().size()) - speculator.committed();
  if (speculator.drafted_total() == 0) world().Note(Seen::kStreamBeforeDraft);
  if (engine_busy_ && std::holds_alternative<Draft>((*lane)->action)) world().Note(Seen::kStreamDuringDraft);
  if (standing > 0 && std::holds_alternative<Wait>((*lane)->action)) world().Note(Seen::kStreamAfterDrafts);
}

// --- codec threads ---

void SimDecode::PostJobs(const SharedTry& now) {
  while (std::optional<PageJob> job = now->session.NextPageJob()) {
    After(world().Between(1, plan_.page_ns), [this, now, job = std::move(*job)] { DecodePage(now, job); });
  }
}

void SimDecode::DecodePage(const SharedTry& now, const PageJob& job) {
  std::vector<std::uint64_t>& staged = now->staging[job.address];
  if (now->importing) world().Violate("P1", name() + " decodes into the staging block while the engine reads it");
  staged.clear();
  for (const SharedBytes& bytes : job.streams) staged.push_back(HashBytes(*bytes));
  const Status status = now->session.OnPageDecoded(job.address, job.level);
  if (!status.ok() && now->failure.ok()) now->failure = status;
  PostJobs(now);
}

// --- what is held ---

// P4. What a node holds is bounded by the offers it has accepted, these by the requests it admits.
void SimDecode::CheckMemory() {
  std::uint64_t held = 0, bound = 0;
  for (const auto& [id, now] : tries_) {
    held += now->session.bytes_held();
    bound += now->offered;
  }
  if (held > bound || int(lanes_.size()) > plan_.max_running || int(waiting_.size()) > plan_.max_waiting) {
    world().Violate("P4", name() + " holds " + std::to_string(held) + " bytes of " + std::to_string(bound) + ", " +
                              std::to_string(lanes_.size()) + " lanes, " + std::to_string(waiting_.size()) +
                              " waiting");
  }
}

std::string SimDecode::Held() const {
  std::string held = SimNode::Held();
  if (!lanes_.empty() || !waiting_.empty()) held += "requests; ";
  if (!tries_.empty() || *live_tries_ > 0) held += std::to_string(*live_tries_) + " transfers; ";
  const auto pages = std::ranges::count_if(pages_, [](const auto& page) { return !page.expired(); });
  if (pages > 0) held += std::to_string(pages) + " page streams; ";
  return held;
}

}  // namespace lynx
