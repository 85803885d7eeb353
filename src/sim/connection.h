// A connection between two simulated nodes, as TCP gives it: a socket queue, a path with a rate and a delay, a receive
// window; and what may go wrong with it.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "sim/frame_harm.h"
#include "sim/world.h"

namespace lynx {

class SimNode;

enum End : int { kPrefillEnd = 0, kDecodeEnd = 1 };
inline End OtherEnd(End end) { return end == kPrefillEnd ? kDecodeEnd : kPrefillEnd; }

struct LinkPlan {
  double bytes_per_ns = 0.01;
  TimeNs delay_ns = 100'000;            // one way
  std::size_t socket_bytes = 64 << 10;  // a socket takes bytes while it holds fewer unsent ones
  std::size_t window_bytes = 64 << 10;  // on the path and unread by the receiver
  std::size_t segment_bytes = 8 << 10;  // most; every one is shorter by chance
};

class Connection {
 public:
  Connection(World* world, SimNode* prefill, SimNode* decode, const LinkPlan& plan);
  Connection(const Connection&) = delete;

  SimNode* node(End end) const { return nodes_[std::size_t(end)]; }
  bool open(End end) const { return open_[std::size_t(end)]; }

  // --- for the node at `from` ---
  std::size_t Room(End from) const;  // bytes that the socket takes; may be exceeded by the last frame
  bool Unsent(End from) const { return Towards(from).unsent > 0; }
  void Write(End from, std::vector<std::byte> frames);
  // This end is closed. The other hears of it after what was written; or at once, what was written is lost.
  void Close(End end, bool at_once = false);
  // This end is gone without a word.
  void Vanish(End end) { open_[std::size_t(end)] = false; }
  // The node reads again.
  void Read(End at);

  // --- faults ---
  void CutAfter(End to, std::size_t bytes) { pipes_[std::size_t(to)].cut_after = bytes; }
  void Blackhole(End to) { pipes_[std::size_t(to)].blackhole = true; }
  void Stall(End to, TimeNs duration);
  void SlowReader(End at, double bytes_per_ns, TimeNs duration);
  void Trickle(End to, int segments);
  void Harm(End to, FrameHarm harm) { pipes_[std::size_t(to)].harms.push_back(std::move(harm)); }
  // Frames that have passed, the newest few; for replays.
  const std::vector<std::byte>& passed(End to) const { return pipes_[std::size_t(to)].passed; }

  // A transfer has ended here. P3: once; and nobody believes in a transfer that the other knows to have failed.
  void NoteTransferEnd(End end, std::uint64_t request, ErrorCode code);
  void CheckTransferEnds() const;

  std::array<bool, 2> up = {};              // the handshake is complete, as this end sees it
  bool broken = false;                      // something was done to it, or to a node of it, that may cost its requests
  bool slowed = false;                      // something that may only cost them time
  std::uint64_t source = 0;                 // the life of the prefill node that it leads to
  std::set<std::uint64_t> harmed_requests;  // ids of those that the prefill node does not serve as it should

 private:
  using Bytes = std::vector<std::byte>;
  // One direction.
  struct Pipe {
    std::deque<Bytes> socket;
    std::size_t offset = 0;  // of the first piece's unsent bytes
    std::size_t unsent = 0;
    bool writer_closed = false;
    bool sending = false;  // a segment leaves
    TimeNs free_at = 0;
    TimeNs arrives_at = 0;  // of the last segment
    std::size_t on_path = 0;
    Bytes arrived;
    bool end_arrived = false;
    std::optional<std::size_t> cut_after;
    bool blackhole = false;
    TimeNs slow_until = 0;
    double read_bytes_per_ns = 0;
    bool reads_later = false;
    int one_byte_segments = 0;
    std::vector<FrameHarm> harms;
    Bytes passed;
  };
  const Pipe& Towards(End from) const { return pipes_[std::size_t(OtherEnd(from))]; }

  void Send(End to);
  void Arrive(End to, const Bytes& segment);
  void EndArrives(End to);
  void Cut(End to);
  void Slow();

  World* const world_;
  const LinkPlan plan_;
  std::map<std::uint64_t, std::array<std::optional<ErrorCode>, 2>> transfer_ends_;  // by request id
  const std::uint64_t decode_epoch_;
  std::array<SimNode*, 2> nodes_;
  std::array<bool, 2> open_ = {true, true};
  std::array<Pipe, 2> pipes_;  // by the end that reads
};

}  // namespace lynx
