#include "sim/connection.h"

#include <algorithm>
#include <utility>

#include "sim/sim_node.h"

namespace lynx {
namespace {

constexpr std::size_t kPassedBytes = 64 << 10;

}  // namespace

Connection::Connection(World* world, SimNode* prefill, SimNode* decode, const LinkPlan& plan)
    : world_(world), plan_(plan), decode_epoch_(decode->epoch()), nodes_{prefill, decode} {}

std::size_t Connection::Room(End from) const {
  const Pipe& pipe = Towards(from);
  return pipe.unsent < plan_.socket_bytes ? plan_.socket_bytes - pipe.unsent : 0;
}

void Connection::Write(End from, Bytes frames) {
  const End to = OtherEnd(from);
  Pipe& pipe = pipes_[std::size_t(to)];
  if (pipe.passed.size() < kPassedBytes) pipe.passed.insert(pipe.passed.end(), frames.begin(), frames.end());
  // One at a time: where frames begin is not known behind a damaged header.
  const auto done = std::ranges::find_if(pipe.harms, [&](FrameHarm& harm) { return DoHarm(&harm, world_, &frames); });
  if (done != pipe.harms.end()) {
    broken = true;
    world_->Note(done->kind);
    if (world_->logs()) world_->Log(node(to)->name(), std::string("FAULT ").append(SeenName(done->kind)));
    pipe.harms.erase(done);
  }
  if (frames.empty()) return;
  pipe.unsent += frames.size();
  pipe.socket.push_back(std::move(frames));
  Send(to);
}

void Connection::Close(End end, bool at_once) {
  if (!std::exchange(open_[std::size_t(end)], false)) return;
  const End to = OtherEnd(end);
  Pipe& pipe = pipes_[std::size_t(to)];
  pipe.writer_closed = true;
  if (at_once) {
    pipe.socket.clear();
    pipe.unsent = pipe.offset = 0;
  }
  Send(to);
}

// One segment at a time leaves the socket, at the rate of the path.
void Connection::Send(End to) {
  Pipe& pipe = pipes_[std::size_t(to)];
  if (pipe.sending) return;
  if (pipe.unsent == 0) {
    if (!pipe.writer_closed || pipe.blackhole) return;
    const TimeNs at = std::max(pipe.arrives_at, world_->now() + plan_.delay_ns);
    world_->After(at - world_->now(), [this, to] { EndArrives(to); });
    pipe.sending = true;  // nothing follows
    return;
  }
  if (pipe.on_path >= plan_.window_bytes) return;
  std::size_t size = 1 + world_->random().Below(plan_.segment_bytes);
  if (pipe.one_byte_segments > 0) {
    --pipe.one_byte_segments;
    size = 1;
  }
  size = std::min({size, pipe.socket.front().size() - pipe.offset, plan_.window_bytes - pipe.on_path});
  const auto begin = pipe.socket.front().begin() + std::ptrdiff_t(pipe.offset);
  Bytes segment(begin, begin + std::ptrdiff_t(size));
  pipe.offset += size;
  pipe.unsent -= size;
  if (pipe.offset == pipe.socket.front().size()) {
    pipe.socket.pop_front();
    pipe.offset = 0;
  }
  pipe.on_path += size;
  pipe.free_at = std::max(pipe.free_at, world_->now()) + TimeNs(double(size) / plan_.bytes_per_ns);
  if (size == 1 && pipe.one_byte_segments > 0) pipe.free_at += world_->Magnitude(10'000, 5 * kMillisecondNs);
  pipe.arrives_at = std::max(pipe.arrives_at, pipe.free_at + plan_.delay_ns);
  if (!pipe.blackhole) {
    world_->After(pipe.arrives_at - world_->now(), [this, to, bytes = std::move(segment)] { Arrive(to, bytes); });
  }
  pipe.sending = true;
  world_->After(pipe.free_at - world_->now(), [this, to] {
    pipes_[std::size_t(to)].sending = false;
    Send(to);
    nodes_[std::size_t(OtherEnd(to))]->OnRoom(this);
  });
}

void Connection::Arrive(End to, const Bytes& segment) {
  Pipe& pipe = pipes_[std::size_t(to)];
  if (pipe.blackhole) return;
  std::size_t size = segment.size();
  if (pipe.cut_after) {
    size = std::min(size, *pipe.cut_after);
    *pipe.cut_after -= size;
  }
  pipe.arrived.insert(pipe.arrived.end(), segment.begin(), segment.begin() + std::ptrdiff_t(size));
  if (pipe.cut_after && *pipe.cut_after == 0) return Cut(to);
  Read(to);
}

// Both ends hear of it: this one behind what has arrived, the other after a while.
void Connection::Cut(End to) {
  broken = true;
  world_->Note(Seen::kCut);
  if (world_->logs()) world_->Log(nodes_[std::size_t(to)]->name(), "FAULT connection cut");
  for (Pipe& pipe : pipes_) {
    pipe.blackhole = true;
    pipe.cut_after.reset();
  }
  Read(to);
  EndArrives(to);
  world_->After(plan_.delay_ns, [this, to] { EndArrives(OtherEnd(to)); });
}

void Connection::EndArrives(End to) {
  pipes_[std::size_t(to)].end_arrived = true;
  Read(to);
}

void Connection::Read(End at) {
  Pipe& pipe = pipes_[std::size_t(at)];
  SimNode* node = nodes_[std::size_t(at)];
  if (!open(at)) {  // nobody reads any more
    pipe.on_path = 0;
    pipe.arrived.clear();
    return;
  }
  if (!node->running() || pipe.reads_later) return;
  if (!pipe.arrived.empty()) {
    Bytes bytes;
    if (world_->now() < pipe.slow_until) {
      constexpr TimeNs kTurn = 10 * kMillisecondNs;
      const auto size = std::min(pipe.arrived.size(), std::size_t(1 + pipe.read_bytes_per_ns * double(kTurn)));
      bytes.assign(pipe.arrived.begin(), pipe.arrived.begin() + std::ptrdiff_t(size));
      pipe.arrived.erase(pipe.arrived.begin(), pipe.arrived.begin() + std::ptrdiff_t(size));
      pipe.reads_later = true;
      world_->After(kTurn, [this, at] {
        pipes_[std::size_t(at)].reads_later = false;
        Read(at);
      });
    } else {
      bytes.swap(pipe.arrived);
    }
    pipe.on_path -= std::min(pipe.on_path, bytes.size());
    node->OnBytes(this, bytes);
    Send(at);
  }
  if (pipe.end_arrived && pipe.arrived.empty()) node->OnEnd(this);
}

void Connection::NoteTransferEnd(End end, std::uint64_t request, ErrorCode code) {
  std::optional<ErrorCode>& known = transfer_ends_[request][std::size_t(end)];
  if (known) world_->Violate("P3", node(end)->name() + ": a transfer ends twice");
  known = code;
}

// DONE may be lost with its connection or come after the deadline.
void Connection::CheckTransferEnds() const {
  for (const auto& [id, ends] : transfer_ends_) {
    const auto& [prefill, decode] = ends;
    const bool same_life = node(kDecodeEnd)->epoch() == decode_epoch_;
    const bool doubted = prefill == ErrorCode::kOk && decode != ErrorCode::kOk && same_life;
    const bool unheard =
        decode == ErrorCode::kOk && prefill != ErrorCode::kOk && prefill != ErrorCode::kLimit && !broken;
    if (doubted || unheard) world_->Violate("P3", "the two ends of transfer " + std::to_string(id) + " differ");
  }
}

void Connection::Stall(End to, TimeNs duration) {
  Pipe& pipe = pipes_[std::size_t(to)];
  pipe.free_at = std::max(pipe.free_at, world_->now()) + duration;
  Slow();
}

void Connection::SlowReader(End at, double bytes_per_ns, TimeNs duration) {
  Pipe& pipe = pipes_[std::size_t(at)];
  pipe.slow_until = world_->now() + duration;
  pipe.read_bytes_per_ns = bytes_per_ns;
  Slow();
}

void Connection::Trickle(End to, int segments) {
  pipes_[std::size_t(to)].one_byte_segments = segments;
  Slow();
}

// One such fault is survived; several together may last for three heartbeats.
void Connection::Slow() {
  broken = broken || slowed;
  slowed = true;
  world_->NoteSlowness();
}

}  // namespace lynx
