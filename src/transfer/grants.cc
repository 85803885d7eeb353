#include "transfer/grants.h"

#include <algorithm>

namespace lynx {
namespace {

// Window = 1.25 * bandwidth-delay product + 128 KiB: the quarter lets it find a faster path (as BBR's gain does), the
// rest covers what waits in the sender's socket.
constexpr double kGain = 1.25;
constexpr double kGrowingGain = 2.0;  // while the rate still rises by a quarter per sample
constexpr double kBaseBytes = 128 << 10;
constexpr double kProbeDivisor = 4;  // less than half of what the path holds: queues drain
constexpr double kMaxWindowBytes = 64 << 20;
// Grants smaller than this part of the window are put off until they are larger, unless nothing more is available.
constexpr std::uint64_t kQuantaPerWindow = 8;

}  // namespace

std::uint64_t GrantWindow::PeerWindow::UpTo(int stream_class) const {
  std::uint64_t sum = 0;
  for (int k = 0; k <= stream_class; ++k) sum += outstanding[std::size_t(k)];
  return sum;
}

std::uint64_t GrantWindow::window_bytes() const {
  if (fixed_bytes_ != 0) return fixed_bytes_;
  const bool probing = std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer.second.probing; });
  return std::uint64_t(probing ? window_ / kProbeDivisor : window_);
}

void GrantWindow::Want(IncomingStream* stream) {
  if (stream->available > stream->granted) wanting_[stream->priority] = stream;
}

void GrantWindow::Forget(IncomingStream* stream) {
  wanting_.erase(stream->priority);
  OnReceived(*stream, stream->granted - stream->received_bytes);
}

void GrantWindow::Grant(IncomingStream* stream, std::uint64_t granted, TimeNs now) {
  PeerWindow& peer = peers_[stream->request.peer];
  if (peer.UpTo(kMaxStreams - 1) == 0) {
    peer.progress_ns = now;
    peer.stalled = false;
  }
  peer.outstanding[std::size_t(stream->priority.stream_class)] += granted - stream->granted;
  if (stream->granted == 0) stream->first_grant_ns = now;
  if (stream->granted == stream->received_bytes) stream->moved_ns = now;
  stream->granted = granted;
}

void GrantWindow::OnReceived(const IncomingStream& stream, std::uint64_t bytes) {
  peers_[stream.request.peer].outstanding[std::size_t(stream.priority.stream_class)] -= bytes;
}

void GrantWindow::OnProgress(PeerId id, std::uint64_t bytes, TimeNs now) {
  PeerWindow& peer = peers_[id];
  peer.progress_ns = now;
  peer.stalled = false;
  const double before = rate_.bytes_per_ns();
  if (!rate_.Add(bytes, now)) return;
  growing_ = rate_.bytes_per_ns() > kGain * before;
  UpdateWindow(true);
}

void GrantWindow::OnRoundTrip(PeerId peer, TimeNs min_rtt_ns, bool probing) {
  peers_[peer].min_rtt_ns = min_rtt_ns;
  peers_[peer].probing = probing;
  UpdateWindow(false);
}

void GrantWindow::RemovePeer(PeerId peer) { peers_.erase(peer); }

// Grows at once, as a window that is too small costs throughput in proportion; shrinks smoothly.
void GrantWindow::UpdateWindow(bool may_shrink) {
  TimeNs rtt = 0;
  for (const auto& [id, peer] : peers_) rtt = std::max(rtt, peer.min_rtt_ns);
  if (rtt == 0 || rate_.bytes_per_ns() == 0) return;
  const double gain = growing_ ? kGrowingGain : kGain;
  const double target = std::min(kMaxWindowBytes, gain * double(rtt) * rate_.bytes_per_ns() + kBaseBytes);
  if (target > window_) {
    window_ = target;
  } else if (may_shrink) {
    window_ += (target - window_) / 8;
  }
}

// Bytes that may still be granted to a class of a peer. A stalled peer has only its own window.
std::uint64_t GrantWindow::Room(PeerId id, int stream_class) const {
  std::uint64_t own = 0;
  std::uint64_t shared = 0;
  for (const auto& [other, peer] : peers_) {
    const std::uint64_t outstanding = peer.UpTo(stream_class);
    if (!peer.stalled) shared += outstanding;
    if (other == id) own = outstanding;
  }
  const std::uint64_t used = std::max(own, shared);
  return used >= window_bytes() ? 0 : window_bytes() - used;
}

void GrantWindow::Pump(TimeNs now, const std::function<void(IncomingStream*)>& granted) {
  for (auto& [id, peer] : peers_) {
    if (now - peer.progress_ns >= kStallNs && peer.UpTo(kMaxStreams - 1) > 0) peer.stalled = true;
  }
  const std::uint64_t quantum = std::max<std::uint64_t>(1, window_bytes() / kQuantaPerWindow);
  for (auto it = wanting_.begin(); it != wanting_.end();) {
    IncomingStream* stream = it->second;
    const std::uint64_t wanted = stream->available - stream->granted;
    const std::uint64_t room = Room(stream->request.peer, stream->priority.stream_class);
    if (room < std::min(wanted, quantum)) {
      // A stalled peer's stream does not close the window for those behind it.
      if (!peers_[stream->request.peer].stalled) return;
      ++it;
      continue;
    }
    Grant(stream, stream->granted + std::min(wanted, room), now);
    granted(stream);
    it = stream->granted == stream->available ? wanting_.erase(it) : std::next(it);
  }
}

std::optional<TimeNs> GrantWindow::NextTimeout() const {
  std::optional<TimeNs> next;
  if (wanting_.empty()) return next;
  for (const auto& [id, peer] : peers_) {
    if (peer.stalled || peer.UpTo(kMaxStreams - 1) == 0) continue;
    const TimeNs at = peer.progress_ns + kStallNs;
    next = next ? std::min(*next, at) : at;
  }
  return next;
}

}  // namespace lynx
