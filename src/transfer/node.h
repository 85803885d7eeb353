// TransferNode::Impl: where peers, requests, the grant window and the events meet.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lynx/transfer.h"
#include "transfer/grants.h"
#include "transfer/peer.h"

namespace lynx {

class TransferNode::Impl {
 public:
  explicit Impl(NodeConfig node_config) : config(std::move(node_config)), window(config) {}

  // Null for a peer that is not there.
  Peer* FindPeer(PeerId id);
  // Null for a request that is not open.
  OutgoingRequest* FindOutgoing(RequestId id);
  IncomingRequest* FindIncoming(RequestId id);
  bool IsOpen(RequestId id) { return FindOutgoing(id) != nullptr || FindIncoming(id) != nullptr; }

  // --- node_frames.cc: what a frame does. An error is the peer's fault and closes the connection. ---
  Status OnFrame(Peer* peer, const FrameView& frame, TimeNs now);

  // --- the ends of things, each in exactly one place ---
  // The request's terminal event; frees all that belongs to it. Tells the peer by ABORT or, if `why` is ok, by DONE.
  enum class Tell { kNo, kYes };
  void FinishRequest(RequestId id, const Status& why, Tell tell, TimeNs now);
  // Ends the peer's requests and its connection; tells it by ERROR.
  void FailPeer(Peer* peer, const Status& why, Tell tell, TimeNs now);

  // --- sending ---
  bool HeldBack(const Peer& peer, TimeNs now) const;
  TimeNs NextRelease() const;
  // After every change of the stream.
  void UpdateSendable(Peer* peer, OutgoingStream* stream, TimeNs now);
  // Its peer took bytes of it.
  void OnTaken(OutgoingStream* stream, std::uint64_t bytes, TimeNs now);
  // Queues END for a stream whose pages are all sent, once PREFILL_DONE is queued.
  void MaybeEnd(Peer* peer, OutgoingRequest* request, OutgoingStream* stream);
  void PumpGrants(TimeNs now);
  // Bytes of a page have come, of this stream or of the frame that is coming.
  void OnPageData(Peer* peer, IncomingStream* stream, TimeNs now);
  void OnPartOfPage(Peer* peer, const FrameHeader& header, TimeNs now);
  // Ends the peer's requests that have not moved for too long.
  void EndStalled(Peer* peer, TimeNs now);

  std::uint32_t OpenRequests() const;
  // When a request that begins now must have ended; kNoDeadline if deadline_ms is 0.
  TimeNs SetDeadline(RequestId id, std::uint32_t deadline_ms, TimeNs now);

  const NodeConfig config;
  std::map<PeerId, std::unique_ptr<Peer>> peers;
  GrantWindow window;
  std::deque<TransferEvent> events;
  std::set<std::pair<TimeNs, RequestId>> deadlines;
  PeerId last_peer = 0;
  std::uint64_t last_request = 0;  // of all connections (decode): a late frame of a former one names none of these
  std::uint64_t arrivals = 0;
  std::uint64_t prompt_tokens = 0;  // of open requests (prefill)
  TimeNs ticked_ns = 0;

 private:
  Status OnRequest(Peer* peer, const FrameView& frame, TimeNs now);
  Status OnDecodeFrame(Peer* peer, IncomingRequest* request, const FrameView& frame, TimeNs now);
  Status OnPrefillFrame(Peer* peer, OutgoingRequest* request, const FrameView& frame, TimeNs now);
  Status OnOffer(IncomingRequest* request, const FrameView& frame);
  Status OnPage(Peer* peer, IncomingRequest* request, const FrameView& frame, TimeNs now);
  Status OnDamagedPage(Peer* peer, IncomingRequest* request, const FrameView& frame, TimeNs now);
  void FailDamaged(IncomingRequest* request, TimeNs now);
  Status OnNak(Peer* peer, OutgoingRequest* request, const FrameView& frame, TimeNs now);
  Status OnEnd(IncomingRequest* request, const FrameView& frame, TimeNs now);
};

}  // namespace lynx
