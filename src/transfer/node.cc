#include "transfer/node.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace lynx {

// --- Impl ---

Peer* TransferNode::Impl::FindPeer(PeerId id) {
  const auto it = peers.find(id);
  return it == peers.end() ? nullptr : it->second.get();
}

OutgoingRequest* TransferNode::Impl::FindOutgoing(RequestId id) {
  Peer* peer = FindPeer(id.peer);
  if (peer == nullptr) return nullptr;
  const auto it = peer->outgoing.find(id.id);
  return it == peer->outgoing.end() ? nullptr : &it->second;
}

IncomingRequest* TransferNode::Impl::FindIncoming(RequestId id) {
  Peer* peer = FindPeer(id.peer);
  if (peer == nullptr) return nullptr;
  const auto it = peer->incoming.find(id.id);
  return it == peer->incoming.end() ? nullptr : &it->second;
}

std::uint32_t TransferNode::Impl::OpenRequests() const {
  std::size_t open = 0;
  for (const auto& [id, peer] : peers) open += peer->outgoing.size() + peer->incoming.size();
  return std::uint32_t(open);
}

TimeNs TransferNode::Impl::SetDeadline(RequestId id, std::uint32_t deadline_ms, TimeNs now) {
  if (deadline_ms == 0) return kNoDeadline;
  const TimeNs deadline = now + TimeNs{deadline_ms} * kMillisecondNs;
  deadlines.emplace(deadline, id);
  return deadline;
}

void TransferNode::Impl::FinishRequest(RequestId id, const Status& why, Tell tell, TimeNs now) {
  Peer* peer = FindPeer(id.peer);
  if (tell == Tell::kYes) {
    if (why.ok()) {
      peer->QueueBytes(peer->Header(FrameType::kDone, id.id), {});
    } else {
      peer->Queue(peer->Header(FrameType::kAbort, id.id), why);
    }
  }
  if (OutgoingRequest* request = FindOutgoing(id)) {
    deadlines.erase({request->deadline_ns(), id});
    peer->Drop(request);
    prompt_tokens -= request->prompt_tokens;
    peer->outgoing.erase(id.id);
  } else if (IncomingRequest* incoming = FindIncoming(id)) {
    deadlines.erase({incoming->deadline_ns(), id});
    peer->Drop(incoming);
    for (IncomingStream& stream : incoming->streams()) window.Forget(&stream);
    peer->incoming.erase(id.id);
    PumpGrants(now);
  }
  events.push_back(RequestFinished{id, why});
}

void TransferNode::Impl::FailPeer(Peer* peer, const Status& why, Tell tell, TimeNs now) {
  if (peer->state == PeerState::kDown) return;
  while (!peer->outgoing.empty()) FinishRequest({peer->id(), peer->outgoing.begin()->first}, why, Tell::kNo, now);
  while (!peer->incoming.empty()) FinishRequest({peer->id(), peer->incoming.begin()->first}, why, Tell::kNo, now);
  peer->Close(why, tell == Tell::kYes, now);
  window.RemovePeer(peer->id());
  events.push_back(PeerDown{peer->id(), why});
}

// The sender's half of strict priority: one order over all connections. A lower stream whose grants are in flight
// counts too: without that, every receiver's window would be full all the time and the connections would share the
// link.
bool TransferNode::Impl::HeldBack(const Peer& peer, TimeNs now) const {
  if (config.order == SendOrder::kFifo) return false;
  const int own = peer.sendable.begin()->first.stream_class;
  for (const auto& [id, other] : peers) {
    if (other->state != PeerState::kUp) continue;
    for (const auto& [priority, stream] : other->waiting) {
      if (priority.stream_class >= own) break;
      // One that could be sent at once is not slow: it was held back itself.
      if ((stream->CanSend() && other->writable) || now < stream->hold_until_ns) return true;
    }
  }
  return false;
}

void TransferNode::Impl::UpdateSendable(Peer* peer, OutgoingStream* stream, TimeNs now) {
  if (stream->IsWaiting() && !peer->waiting.contains(stream->priority)) stream->hold_until_ns = now + kHoldNs;
  const auto update = [stream](bool in, std::map<Priority, OutgoingStream*>* set) {
    if (in) {
      (*set)[stream->priority] = stream;
    } else {
      set->erase(stream->priority);
    }
  };
  update(stream->CanSend(), &peer->sendable);
  update(stream->IsWaiting(), &peer->waiting);
  update(stream->available > stream->announced, &peer->available);
}

void TransferNode::Impl::OnTaken(OutgoingStream* stream, std::uint64_t bytes, TimeNs now) {
  const auto earned = TimeNs(double(kHoldNs) * double(bytes) / double(config.hold_bytes));
  stream->hold_until_ns = std::min(std::max(stream->hold_until_ns, now) + std::min(earned, kHoldNs), now + kHoldNs);
}

// The next moment at which a peer stops holding others back.
TimeNs TransferNode::Impl::NextRelease() const {
  TimeNs next = kNoDeadline;
  for (const auto& [id, peer] : peers) {
    const auto consider = [&](TimeNs at) { next = at > ticked_ns ? std::min(next, at) : next; };
    for (const auto& [priority, stream] : peer->waiting) consider(stream->hold_until_ns);
  }
  return next;
}

void TransferNode::Impl::MaybeEnd(Peer* peer, OutgoingRequest* request, OutgoingStream* stream) {
  if (!request->prefill_done || stream->end_sent || !stream->AllSent()) return;
  stream->end_sent = true;
  peer->Queue(peer->StreamHeader(FrameType::kEnd, *stream), stream->End());
}

void TransferNode::Impl::PumpGrants(TimeNs now) {
  window.Pump(now,
              [this](IncomingStream* stream) { FindPeer(stream->request.peer)->granted[stream->priority] = stream; });
}

void TransferNode::Impl::OnPageData(Peer* peer, IncomingStream* stream, TimeNs now) {
  stream->moved_ns = now;
  peer->class_moved_ns[std::size_t(stream->priority.stream_class)] = now;
}

void TransferNode::Impl::OnPartOfPage(Peer* peer, const FrameHeader& header, TimeNs now) {
  IncomingRequest* request = FindIncoming({peer->id(), header.request});
  if (request == nullptr) return;
  if (const auto stream = request->Find(header.part, header.stream); stream.ok()) OnPageData(peer, *stream, now);
}

void TransferNode::Impl::EndStalled(Peer* peer, TimeNs now) {
  const auto seconds = [](TimeNs time) { return std::to_string(time / kSecondNs) + " s"; };
  std::vector<RequestId> ended;
  for (const auto& [id, request] : peer->incoming) {
    if (now - config.stall_ns >= request.WaitsSince(peer->class_moved_ns)) ended.push_back(request.id());
  }
  for (const RequestId id : ended) {
    FinishRequest(id, IoError("nothing of what was granted has come for " + seconds(config.stall_ns)), Tell::kYes, now);
  }
  ended.clear();
  for (const auto& [id, request] : peer->outgoing) {
    if (request.HoldsBytes()) ended.push_back(request.id());
  }
  if (ended.empty()) peer->taken_ns = now;
  if (now - peer->taken_ns < kUntakenStalls * config.stall_ns) return;
  const Status why = IoError("the decode node has taken nothing for " + seconds(kUntakenStalls * config.stall_ns));
  for (const RequestId id : ended) FinishRequest(id, why, Tell::kYes, now);
}

// --- connections ---

TransferNode::TransferNode(NodeConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
TransferNode::~TransferNode() = default;

PeerId TransferNode::AddPeer(TimeNs now) {
  const PeerId id = ++impl_->last_peer;
  impl_->peers.emplace(id, std::make_unique<Peer>(id, impl_->config, now));
  return id;
}

void TransferNode::RemovePeer(PeerId id, Status why, TimeNs now) {
  Peer* peer = impl_->FindPeer(id);
  if (peer == nullptr) return;
  if (why.ok()) why = IoError("connection was closed");
  impl_->FailPeer(peer, why, Impl::Tell::kNo, now);
  impl_->peers.erase(id);
}

void TransferNode::Feed(PeerId id, std::span<const std::byte> bytes, TimeNs now) {
  Peer* peer = impl_->FindPeer(id);
  if (peer == nullptr || peer->state == PeerState::kDown || bytes.empty()) return;
  peer->received_ns = now;
  peer->stats.bytes_received += bytes.size();
  const std::size_t fed = bytes.size();
  const auto in_page = [peer] {
    const FrameHeader* unfinished = peer->reader.Unfinished();
    return unfinished != nullptr && unfinished->type == FrameType::kPage;
  };
  bool page_data = in_page();
  while (peer->state != PeerState::kDown) {
    auto frame = peer->reader.Next(&bytes);
    Status status = frame.status();
    if (frame.ok()) {
      if (!*frame) break;
      page_data |= (*frame)->header.type == FrameType::kPage;
      status = impl_->OnFrame(peer, **frame, now);
    }
    if (status.ok() && peer->queued() > kMaxQueuedFrames) status = LimitExceeded("peer does not read what it is sent");
    if (!status.ok()) impl_->FailPeer(peer, status, Impl::Tell::kYes, now);
  }
  if (peer->state == PeerState::kUp && (page_data || in_page())) {
    peer->receive_rate.Add(fed, now);
    impl_->window.OnProgress(id, fed, now);
    if (in_page()) impl_->OnPartOfPage(peer, *peer->reader.Unfinished(), now);
  }
  impl_->PumpGrants(now);
}

std::size_t TransferNode::Output(PeerId id, std::size_t budget, TimeNs now, std::vector<std::byte>* out) {
  Peer* peer = impl_->FindPeer(id);
  if (peer == nullptr) return 0;
  const std::size_t begin = out->size();
  const std::size_t end = budget > SIZE_MAX - begin ? SIZE_MAX : begin + budget;
  const std::uint32_t open_requests = impl_->OpenRequests();
  peer->WriteControl(end, open_requests, now, out);
  if (peer->state == PeerState::kUp) {
    const std::uint32_t frame_bytes = FrameBytes(peer->send_rate.bytes_per_ns(), peer->hello().limits.max_frame_bytes);
    const std::size_t pages_begin = out->size();
    while (out->size() < end && !peer->sendable.empty() && !impl_->HeldBack(*peer, now)) {
      OutgoingStream* stream = peer->sendable.begin()->second;
      const std::uint64_t before = stream->sent_bytes;
      stream->WriteFragment(peer->StreamHeader(FrameType::kPage, *stream), frame_bytes, out);
      impl_->OnTaken(stream, stream->sent_bytes - before, now);
      impl_->UpdateSendable(peer, stream, now);
      if (!stream->AllSent()) continue;
      impl_->MaybeEnd(peer, impl_->FindOutgoing(stream->request), stream);
      peer->WriteControl(end, open_requests, now, out);
    }
    if (out->size() > pages_begin) {
      peer->send_rate.Add(out->size() - pages_begin, now);
      peer->taken_ns = now;
    }
  }
  peer->stats.bytes_sent += out->size() - begin;
  return out->size() - begin;
}

bool TransferNode::WantsClose(PeerId id) const {
  const Peer* peer = impl_->FindPeer(id);
  return peer == nullptr || peer->WantsClose();
}

void TransferNode::SetWritable(PeerId id, bool writable) {
  if (Peer* peer = impl_->FindPeer(id)) peer->writable = writable;
}

std::optional<TimeNs> TransferNode::NextTimeout() const {
  TimeNs next = std::min(impl_->window.NextTimeout().value_or(kNoDeadline), impl_->NextRelease());
  if (!impl_->deadlines.empty()) next = std::min(next, impl_->deadlines.begin()->first);
  for (const auto& [id, peer] : impl_->peers) next = std::min(next, peer->NextTimeout());
  return next == kNoDeadline ? std::nullopt : std::optional(next);
}

void TransferNode::Tick(TimeNs now) {
  impl_->ticked_ns = now;
  while (!impl_->deadlines.empty() && impl_->deadlines.begin()->first <= now) {
    impl_->FinishRequest(impl_->deadlines.begin()->second, LimitExceeded("deadline of the request has passed"),
                         Impl::Tell::kYes, now);
  }
  for (auto& [id, peer] : impl_->peers) {
    const TimeNs ping_at = peer->ping_at_ns();
    const Status status = peer->Tick(now);
    if (!status.ok()) impl_->FailPeer(peer.get(), status, Impl::Tell::kNo, now);
    if (peer->ping_at_ns() != ping_at) impl_->EndStalled(peer.get(), now);
  }
  impl_->PumpGrants(now);
}

std::optional<TransferEvent> TransferNode::Poll() {
  if (impl_->events.empty()) return std::nullopt;
  TransferEvent event = std::move(impl_->events.front());
  impl_->events.pop_front();
  return event;
}

PeerStats TransferNode::Stats(PeerId id) const {
  const Peer* peer = impl_->FindPeer(id);
  if (peer == nullptr) return {};
  PeerStats stats = peer->stats;
  stats.receive_rate_bps = peer->receive_rate.bytes_per_ns() * 8e9;
  stats.window_bytes = impl_->window.window_bytes();
  return stats;
}

std::uint32_t TransferNode::OpenRequests() const { return impl_->OpenRequests(); }

// --- decode side ---

Result<RequestId> TransferNode::Request(PeerId id, const TransferRequest& request, TimeNs now) {
  Peer* peer = impl_->FindPeer(id);
  if (impl_->config.role != NodeRole::kDecode) return Invalid("a prefill node makes no requests");
  if (peer == nullptr || peer->state != PeerState::kUp) return Invalid("peer is not up");
  if (request.codec.size() > kMaxNameBytes) return Invalid("codec spec is too long");
  if (!peer->Knows(request.codec)) return Invalid("peer does not know the codec " + request.codec);
  const TransferLimits& limits = peer->hello().limits;
  if (request.tokens.size() > limits.max_prompt_tokens) {
    return Unsupported("the prompt has " + std::to_string(request.tokens.size()) + " tokens, the prefill node takes " +
                       std::to_string(limits.max_prompt_tokens) + "; start it with a larger --context");
  }
  if (peer->incoming.size() >= std::min(limits.max_requests, impl_->config.limits.max_requests)) {
    return LimitExceeded("too many open requests at this peer: try later");
  }
  const RequestId request_id{id, peer->last_request = ++impl_->last_request};
  const TimeNs deadline = impl_->SetDeadline(request_id, request.deadline_ms, now);
  peer->incoming.emplace(request_id.id,
                         IncomingRequest(request_id, {request.anchor_first, deadline, ++impl_->arrivals}));
  peer->Queue(peer->Header(FrameType::kRequest, request_id.id), request);
  return request_id;
}

Status TransferNode::AcceptOffer(RequestId id, TimeNs now) {
  IncomingRequest* request = impl_->FindIncoming(id);
  if (request == nullptr) return Invalid("request is not open");
  LYNX_RETURN_IF_ERROR(request->Accept());
  Peer* peer = impl_->FindPeer(id.peer);
  for (IncomingStream& stream : request->streams()) {
    if (impl_->config.pull) {
      impl_->window.Want(&stream);
    } else {
      impl_->window.Grant(&stream, request->MaxBytes(stream.stream), now);
      peer->granted[stream.priority] = &stream;
    }
  }
  impl_->PumpGrants(now);
  return Ok();
}

// --- prefill side ---

Status TransferNode::Offer(RequestId id, const TransferOffer& offer, TimeNs) {
  OutgoingRequest* request = impl_->FindOutgoing(id);
  if (request == nullptr) return Invalid("request is not open");
  LYNX_RETURN_IF_ERROR(request->Offer(offer, impl_->config.order));
  Peer* peer = impl_->FindPeer(id.peer);
  peer->Queue(peer->Header(FrameType::kOffer, id.id), offer);
  return Ok();
}

Status TransferNode::SendPrefillDone(RequestId id, const PrefillDone& done, TimeNs) {
  OutgoingRequest* request = impl_->FindOutgoing(id);
  if (request == nullptr) return Invalid("request is not open");
  if (request->prefill_done) return Invalid("PREFILL_DONE was sent before");
  Peer* peer = impl_->FindPeer(id.peer);
  peer->Queue(peer->Header(FrameType::kPrefillDone, id.id), done);
  request->prefill_done = true;
  for (OutgoingStream& stream : request->streams()) impl_->MaybeEnd(peer, request, &stream);
  return Ok();
}

Status TransferNode::PushPage(RequestId id, int part, int stream, const PageAddress& address, SharedBytes bytes,
                              TimeNs now) {
  OutgoingRequest* request = impl_->FindOutgoing(id);
  if (request == nullptr) return Invalid("request is not open");
  Peer* peer = impl_->FindPeer(id.peer);
  LYNX_ASSIGN_OR_RETURN(OutgoingStream* const out, request->Find(part, stream));
  LYNX_RETURN_IF_ERROR(request->Push(out, address, std::move(bytes), peer->hello().limits.max_page_stream_bytes));
  impl_->UpdateSendable(peer, out, now);
  return Ok();
}

Status TransferNode::EndStream(RequestId id, int part, int stream, TimeNs) {
  OutgoingRequest* request = impl_->FindOutgoing(id);
  if (request == nullptr) return Invalid("request is not open");
  LYNX_ASSIGN_OR_RETURN(OutgoingStream* const out, request->Find(part, stream));
  if (out->ended) return Invalid("stream was ended before");
  out->ended = true;
  impl_->MaybeEnd(impl_->FindPeer(id.peer), request, out);
  return Ok();
}

// --- both ---

void TransferNode::Abort(RequestId id, Status why, TimeNs now) {
  if (!impl_->IsOpen(id)) return;
  if (why.ok()) why = Invalid("request was aborted");
  impl_->FinishRequest(id, why, Impl::Tell::kYes, now);
}

}  // namespace lynx
