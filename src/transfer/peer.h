// One connection: its handshake, its heartbeat, and the frames that wait for it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lynx/transfer.h"
#include "transfer/order.h"
#include "transfer/rate.h"
#include "transfer/receiver.h"
#include "transfer/sender.h"

namespace lynx {

inline constexpr TimeNs kHandshakeNs = 5 * kSecondNs;
inline constexpr int kMissedHeartbeats = 3;
// A stream holds the higher streams of other peers back for this long from when it begins to wait for its peer's grants
// or socket, and longer as its peer takes NodeConfig::hold_bytes of it in each such time.
inline constexpr TimeNs kHoldNs = 200 * kMillisecondNs;
// The requests of a peer that has taken nothing of what is ready for it end after this many NodeConfig::stall_ns: the
// decode node's own check comes first, and it may grant to other prefill nodes meanwhile.
inline constexpr int kUntakenStalls = 6;
// How long a refused peer's ERROR may wait for its socket.
inline constexpr TimeNs kLingerNs = kSecondNs;
// The round trip is the smallest of this long, so that a longer route is believed; the path is drained a little to see
// whether it's the route or what is on it (as BBR does: draft-cardwell-iccrg-bbr-congestion-control, ProbeRTT).
inline constexpr TimeNs kRoundTripNs = 10 * kSecondNs;
// Control frames that may wait for a peer that does not read.
inline constexpr std::size_t kMaxQueuedFrames = 1 << 16;

enum class PeerState : std::uint8_t { kHandshake, kUp, kDown };

class Peer {
 public:
  // HELLO is queued. `config` outlives the peer.
  Peer(PeerId id, const NodeConfig& config, TimeNs now);

  PeerId id() const { return id_; }

  // --- handshake ---
  // The peer's HELLO: kUnsupported naming what does not fit.
  Status OnHello(const FrameHeader& header, const Hello& hello, TimeNs now);
  // kCorrupt unless the frame may come now and is of the peer's epoch.
  Status CheckFrame(const FrameHeader& header) const;
  bool Knows(const std::string& codec) const;
  const Hello& hello() const { return *hello_; }

  // --- heartbeat ---
  void OnPong(const Pong& pong, TimeNs now);
  // The round trip is being measured again: less should be on the way.
  bool probing() const { return probing_; }
  // kIo when the peer is dead; queues a PING when one is due.
  Status Tick(TimeNs now);
  TimeNs NextTimeout() const;
  TimeNs ping_at_ns() const { return ping_at_ns_; }

  // --- frames to send ---
  FrameHeader Header(FrameType type, std::uint64_t request = 0) const;
  template <typename Stream>  // IncomingStream, OutgoingStream
  FrameHeader StreamHeader(FrameType type, const Stream& stream) const {
    FrameHeader header = Header(type, stream.request.id);
    header.stream = std::uint8_t(stream.stream);
    header.part = std::uint16_t(stream.part);
    return header;
  }
  template <typename Payload>
  void Queue(const FrameHeader& header, const Payload& payload) {
    std::vector<std::byte> bytes;
    Encode(payload, &bytes);
    QueueBytes(header, bytes);
  }
  void QueueBytes(const FrameHeader& header, std::span<const std::byte> payload);
  std::size_t queued() const { return control_.size(); }
  // Appends queued frames, PONG and PING, AVAILABLE and GRANT while `out` is shorter than `end`.
  void WriteControl(std::size_t end, std::uint32_t open_requests, TimeNs now, std::vector<std::byte>* out);
  // A request has ended: nothing of it is sent any more but what is queued.
  void Drop(OutgoingRequest* request);
  void Drop(IncomingRequest* request);

  // The connection is over; everything queued is replaced by ERROR if `tell`.
  void Close(const Status& why, bool tell, TimeNs now);
  bool WantsClose() const { return state == PeerState::kDown && (control_.empty() || lingered_); }

  PeerState state = PeerState::kHandshake;
  bool writable = true;  // its socket takes bytes
  FrameReader reader;
  PeerStats stats;
  RateEstimator receive_rate;
  RateEstimator send_rate;
  std::map<std::uint64_t, OutgoingRequest> outgoing;
  std::map<std::uint64_t, IncomingRequest> incoming;
  std::uint64_t last_request = 0;  // highest id so far
  std::map<Priority, OutgoingStream*> sendable;
  std::map<Priority, OutgoingStream*> waiting;       // OutgoingStream::IsWaiting
  std::map<Priority, OutgoingStream*> available;     // AVAILABLE is due
  TimeNs taken_ns;                                   // the peer took or granted something, or nothing was there for it
  std::array<TimeNs, kMaxStreams> class_moved_ns{};  // page data came in, per class
  std::map<Priority, IncomingStream*> granted;       // GRANT is due
  std::optional<TimeNs> pong_sent_ns;                // PONG is due
  TimeNs received_ns;                                // any bytes

 private:
  PeerId id_;
  const NodeConfig& config_;
  std::optional<Hello> hello_;
  std::deque<std::vector<std::byte>> control_;
  TimeNs began_ns_;
  TimeNs ping_at_ns_ = 0;
  bool ping_due_ = false;
  TimeNs ping_sent_ns_ = 0;
  std::deque<std::pair<TimeNs, TimeNs>> round_trips_;  // {when, how long}, of the last kRoundTripNs
  bool probing_ = false;
  TimeNs down_ns_ = 0;
  bool lingered_ = false;
};

}  // namespace lynx
