// What crosses the sockets of a prefill node, for two promises. P5: no byte of a higher stream is handed to a socket
// while a lower one is granted and unsent on any connection of the node (B16). P4: what is acknowledged need not be
// held.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "lynx/transfer.h"

namespace lynx {

class SocketTap {
 public:
  void OnPeer(PeerId peer) { peers_.emplace(peer, Connection{FrameReader(FrameLimits{}), {}}); }
  void OnPeerGone(PeerId peer);
  // From now on PAGE frames of the request are looked at.
  void OnOffer(RequestId request, int stream_count, bool anchor_first) {
    by_stream_[request] = anchor_first && stream_count > 1;
  }
  void OnRequestGone(RequestId request);
  void OnWritable(PeerId peer, bool writable, TimeNs now);

  void OnReceived(PeerId peer, std::span<const std::byte> bytes, TimeNs now);
  // Page-stream bytes of a request that the receiver has acknowledged; nothing once pages had to be sent again.
  std::optional<std::uint64_t> Acknowledged(RequestId request) const;
  // False: a PAGE frame among these overtook a lower stream.
  bool OnSent(PeerId peer, std::span<const std::byte> frames, TimeNs now);

 private:
  struct Connection {
    FrameReader reader;
    std::optional<TimeNs> unwritable_since;
    bool unreadable = false;
  };
  struct Stream {
    std::uint64_t granted = 0;
    std::uint64_t acknowledged = 0;
    std::uint64_t sent = 0;
    TimeNs moved = 0;  // granted first, or sent
  };
  // A lower class that waits somewhere, of those of peers that take data.
  bool LowerWaits(int stream_class, TimeNs now) const;

  std::map<PeerId, Connection> peers_;
  std::map<RequestId, bool> by_stream_;  // its streams are classes of their own; false: they compete as stream 1
  std::set<RequestId> resent_;
  // By class, request, part and stream; those only that are granted or sent.
  std::map<std::tuple<int, RequestId, int, int>, Stream> streams_;
};

}  // namespace lynx
