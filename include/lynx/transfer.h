// Transfer: moves the page streams of requests between nodes. TransferNode is the whole protocol of one node without
// sockets, clock or threads: bytes and time go in, bytes and events come out. docs/wire.md is the format,
// docs/protocol.md the rules. What travels (TransferRequest, TransferOffer, PrefillDone, LayoutField) is in
// lynx/wire.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"
#include "lynx/wire.h"

namespace lynx {

using PeerId = std::uint32_t;  // a connection, chosen by the node; never reused

// The decode node chooses `id`, unique in its epoch.
struct RequestId {
  PeerId peer = 0;
  std::uint64_t id = 0;
  auto operator<=>(const RequestId&) const = default;
};

using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// kStrict is the product; kFifo (first offered, first sent) and sender-only priority (`pull` false: everything is
// granted at once) are the controls that tests and benchmarks compare with.
enum class SendOrder : std::uint8_t { kStrict, kFifo };

struct NodeConfig {
  std::string name;
  NodeRole role = NodeRole::kDecode;
  std::uint64_t epoch = 0;  // random per process start
  std::vector<LayoutField> layout;
  std::vector<std::string> codecs;  // canonical specs or names that this node can use
  TransferLimits limits;
  SendOrder order = SendOrder::kStrict;
  bool pull = true;
  // Grant window: 0 follows 1.25 * min RTT * best rate + 128 KiB as measured; otherwise fixed.
  std::uint64_t window_bytes = 0;
  // prefill: a decode node that takes less than this of a stream in 200 ms does not hold higher streams of others back.
  std::uint64_t hold_bytes = 128 << 10;
  TimeNs heartbeat_ns = 500 * kMillisecondNs;  // PING period; a peer that misses 3 is dead
  // decode: a request ends (kIo) when of what it was granted nothing comes for this long. prefill: the requests of a
  // peer that takes nothing of what is ready for 6 times as long end.
  TimeNs stall_ns = 10 * kSecondNs;
  // prefill: requests beyond these, over all peers, are refused (kLimit "busy"); `limits` hold for each peer.
  std::uint32_t max_open_requests = 1024;
  std::uint64_t max_prompt_tokens = 64 << 20;  // of all open requests together
};

// --- events ---

struct PeerUp {
  PeerId peer = 0;
  std::string name;
  NodeRole role = NodeRole::kPrefill;
  std::vector<std::string> codecs;
};
// The connection is over for the protocol; RemovePeer is still due (see WantsClose). Once per peer, up or not.
struct PeerDown {
  PeerId peer = 0;
  Status status;
};
// prefill
struct RequestArrived {
  RequestId request;
  TransferRequest body;
};
// decode: answer with AcceptOffer or Abort
struct OfferArrived {
  RequestId request;
  TransferOffer offer;
};
// decode
struct PrefillDoneArrived {
  RequestId request;
  PrefillDone done;
};
// decode: a whole page stream. Its address lies inside the offer's tokens and no token of the same layer, kind and
// heads came before in this stream; whether it fits the engine's cache is for the caller to check.
struct PageArrived {
  RequestId request;
  int part = 0;
  int stream = 0;
  PageAddress address;
  SharedBytes bytes;
};
// decode: all pages of the stream in all parts have arrived, and so have those of all lower streams.
struct StreamCompleted {
  RequestId request;
  int stream = 0;
  std::uint64_t bytes = 0;       // page streams
  std::uint64_t wire_bytes = 0;  // with frame headers
  TimeNs first_grant_ns = 0;     // when its first bytes were granted
};
// The terminal event of a request, exactly one on each side, also after Abort. ok: every stream arrived (decode) or was
// acknowledged (prefill).
struct RequestFinished {
  RequestId request;
  Status status;
};

using TransferEvent = std::variant<PeerUp, PeerDown, RequestArrived, OfferArrived, PrefillDoneArrived, PageArrived,
                                   StreamCompleted, RequestFinished>;

// Counters of one connection.
struct PeerStats {
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  TimeNs min_rtt_ns = 0;           // 0: not known yet
  double receive_rate_bps = 0;     // best recent rate of page data, bits per second; 0: not known yet
  std::uint64_t window_bytes = 0;  // current shared grant window
  std::uint32_t peer_load = 0;     // open requests, as the peer's last PONG says
  std::uint64_t naks = 0;          // damaged PAGE frames: seen (decode), heard of (prefill)
};

class TransferNode {
 public:
  explicit TransferNode(NodeConfig config);
  ~TransferNode();
  TransferNode(const TransferNode&) = delete;
  TransferNode& operator=(const TransferNode&) = delete;

  // --- connections ---
  // A byte stream to a peer exists; HELLO is queued. PeerUp follows once both HELLOs fit.
  PeerId AddPeer(TimeNs now);
  // The byte stream is gone. Every open request of the peer ends; PeerDown follows.
  void RemovePeer(PeerId peer, Status why, TimeNs now);
  // Bytes from the peer, split anywhere. An error closes the connection: PeerDown follows, and WantsClose is true once
  // what explains it to the peer has been taken by Output.
  void Feed(PeerId peer, std::span<const std::byte> bytes, TimeNs now);
  // Appends whole frames for the peer, stopping once `budget` bytes are exceeded. Returns bytes appended. Nothing of a
  // higher stream is given to any peer while bytes of a lower stream are ready for another that takes data. What one
  // peer takes may release another: after any call that changes something, ask all writable peers until none has
  // output.
  std::size_t Output(PeerId peer, std::size_t budget, TimeNs now, std::vector<std::byte>* out);
  bool WantsClose(PeerId peer) const;
  // The network layer says whether the peer's socket takes bytes.
  void SetWritable(PeerId peer, bool writable);

  // When Tick must be called at the latest, and the call: heartbeats, dead peers, deadlines.
  std::optional<TimeNs> NextTimeout() const;
  void Tick(TimeNs now);

  // Events in the order in which they happened. A request may have ended by an event further back in the queue: calls
  // for it then give kInvalid "request is not open" and change nothing.
  std::optional<TransferEvent> Poll();
  PeerStats Stats(PeerId peer) const;
  std::uint32_t OpenRequests() const;

  // --- decode side ---
  // kInvalid when the peer is not up or does not know the codec.
  Result<RequestId> Request(PeerId peer, const TransferRequest& request, TimeNs now);
  // The receiver has room for the whole transfer: bytes may be granted.
  Status AcceptOffer(RequestId request, TimeNs now);

  // --- prefill side ---
  Status Offer(RequestId request, const TransferOffer& offer, TimeNs now);
  Status SendPrefillDone(RequestId request, const PrefillDone& done, TimeNs now);
  // One encoded page stream is ready. Streams of a page may come in any order.
  Status PushPage(RequestId request, int part, int stream, const PageAddress& address, SharedBytes bytes, TimeNs now);
  // No more pages in this part of the stream; END(stream) is sent after the last of them.
  Status EndStream(RequestId request, int part, int stream, TimeNs now);

  // --- both ---
  // Ends the request here and tells the peer. No effect on a finished request.
  void Abort(RequestId request, Status why, TimeNs now);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The fields in which two layouts differ: kUnsupported "model differs: here …, there …", or ok.
Status CompareLayouts(const std::vector<LayoutField>& here, const std::vector<LayoutField>& there);

}  // namespace lynx
