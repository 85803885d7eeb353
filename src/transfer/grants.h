// The decode side's window: which bytes may be on their way, over all peers and requests.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "lynx/transfer.h"
#include "transfer/order.h"
#include "transfer/rate.h"
#include "transfer/receiver.h"

namespace lynx {

// A peer that delivers nothing of what it was granted for this long does not count in the shared window any more.
inline constexpr TimeNs kStallNs = 500 * kMillisecondNs;

// Grants go to what is available, by Priority, while what is granted and not received is less than the window. Only
// classes up to a stream's own count against it: a residual that its sender holds back never delays an anchor.
class GrantWindow {
 public:
  explicit GrantWindow(const NodeConfig& config) : fixed_bytes_(config.window_bytes) {}

  // `stream` has more available than granted (or may have).
  void Want(IncomingStream* stream);
  // The stream's request has ended: what it was granted does not count any more.
  void Forget(IncomingStream* stream);
  // Counts a grant that did not come from Pump.
  void Grant(IncomingStream* stream, std::uint64_t granted, TimeNs now);
  void OnReceived(const IncomingStream& stream, std::uint64_t bytes);
  // Bytes of a peer's page data came in, possibly in the middle of a frame.
  void OnProgress(PeerId peer, std::uint64_t bytes, TimeNs now);
  // `probing`: the round trip is being measured, the window is small until it is known.
  void OnRoundTrip(PeerId peer, TimeNs min_rtt_ns, bool probing);
  void RemovePeer(PeerId peer);

  // Grants what fits and calls `granted` for each stream with a new grant.
  void Pump(TimeNs now, const std::function<void(IncomingStream*)>& granted);
  // When a peer will count as stalled, if that frees room.
  std::optional<TimeNs> NextTimeout() const;

  std::uint64_t window_bytes() const;

 private:
  struct PeerWindow {
    std::array<std::uint64_t, kMaxStreams> outstanding{};  // granted and not received, per class
    TimeNs progress_ns = 0;                                // last page data, or first grant after none
    TimeNs min_rtt_ns = 0;
    bool stalled = false;
    bool probing = false;
    std::uint64_t UpTo(int stream_class) const;
  };
  std::uint64_t Room(PeerId peer, int stream_class) const;
  void UpdateWindow(bool may_shrink);

  std::uint64_t fixed_bytes_;
  double window_ = 256 << 10;  // until the path is known
  RateEstimator rate_;
  bool growing_ = false;  // the rate still rises with the window: the path has more
  std::map<PeerId, PeerWindow> peers_;
  std::map<Priority, IncomingStream*> wanting_;
};

}  // namespace lynx
