// What each frame does. Connection first, then the request that it names, then the request's own rules.

#include <string>

#include "base/status_macros.h"
#include "transfer/node.h"

namespace lynx {

Status TransferNode::Impl::OnFrame(Peer* peer, const FrameView& frame, TimeNs now) {
  const FrameHeader& header = frame.header;
  LYNX_RETURN_IF_ERROR(peer->CheckFrame(header));
  // A damaged page can be sent again; a damaged control frame leaves both ends disagreeing.
  if (!frame.payload_ok && header.type != FrameType::kPage) return Corrupt("frame payload checksum differs");
  switch (header.type) {
    case FrameType::kHello: {
      LYNX_ASSIGN_OR_RETURN(const Hello hello, ParseHello(frame.payload));
      LYNX_RETURN_IF_ERROR(peer->OnHello(header, hello, now));
      events.push_back(PeerUp{peer->id(), hello.name, hello.role, hello.codecs});
      return Ok();
    }
    case FrameType::kError: {
      Status why;
      LYNX_RETURN_IF_ERROR(ParseStatus(frame.payload, &why));
      FailPeer(peer, Status(why.code(), "peer says: " + why.message()), Tell::kNo, now);
      return Ok();
    }
    case FrameType::kPing: {
      LYNX_ASSIGN_OR_RETURN(const Ping ping, ParsePing(frame.payload));
      peer->pong_sent_ns = ping.sent_ns;
      return Ok();
    }
    case FrameType::kPong: {
      LYNX_ASSIGN_OR_RETURN(const Pong pong, ParsePong(frame.payload));
      peer->OnPong(pong, now);
      if (peer->stats.min_rtt_ns != 0) window.OnRoundTrip(peer->id(), peer->stats.min_rtt_ns, peer->probing());
      return Ok();
    }
    case FrameType::kRequest:
      return OnRequest(peer, frame, now);
    default:
      break;
  }
  // Request ids only grow, so one that was used and is not open has finished: its late frames mean nothing.
  if (header.request == 0 || header.request > peer->last_request) return Corrupt("frame names an unknown request");
  const RequestId id{peer->id(), header.request};
  if (OutgoingRequest* request = FindOutgoing(id)) return OnPrefillFrame(peer, request, frame, now);
  if (IncomingRequest* request = FindIncoming(id)) return OnDecodeFrame(peer, request, frame, now);
  return Ok();
}

Status TransferNode::Impl::OnRequest(Peer* peer, const FrameView& frame, TimeNs now) {
  if (config.role != NodeRole::kPrefill) return Corrupt("REQUEST to a decode node");
  if (frame.header.request <= peer->last_request) return Corrupt("REQUEST: ids must grow");
  LYNX_ASSIGN_OR_RETURN(TransferRequest body, ParseRequest(frame.payload, config.limits.max_prompt_tokens));
  const RequestId id{peer->id(), frame.header.request};
  peer->last_request = id.id;
  if (peer->outgoing.size() >= config.limits.max_requests || OpenRequests() >= config.max_open_requests ||
      body.tokens.size() > config.max_prompt_tokens - prompt_tokens) {
    peer->Queue(peer->Header(FrameType::kAbort, id.id), LimitExceeded("busy: the prefill node has too many requests"));
    return Ok();
  }
  OutgoingRequest request(id, {body.anchor_first, SetDeadline(id, body.deadline_ms, now), ++arrivals});
  request.prompt_tokens = body.tokens.size();
  prompt_tokens += body.tokens.size();
  peer->outgoing.emplace(id.id, std::move(request));
  events.push_back(RequestArrived{id, std::move(body)});
  return Ok();
}

// Frames that only the decode node sends.
Status TransferNode::Impl::OnPrefillFrame(Peer* peer, OutgoingRequest* request, const FrameView& frame, TimeNs now) {
  switch (frame.header.type) {
    case FrameType::kGrant: {
      LYNX_ASSIGN_OR_RETURN(const StreamGrant grant, ParseStreamGrant(frame.payload));
      auto stream = request->Find(frame.header.part, frame.header.stream);
      if (!stream.ok()) return Corrupt("GRANT: " + stream.status().message());
      if (grant != StreamGrant{(*stream)->granted, (*stream)->acknowledged_bytes}) peer->taken_ns = now;
      LYNX_RETURN_IF_ERROR(request->OnGrant(*stream, grant));
      UpdateSendable(peer, *stream, now);
      return Ok();
    }
    case FrameType::kNak:
      return OnNak(peer, request, frame, now);
    case FrameType::kAbort: {
      Status why;
      LYNX_RETURN_IF_ERROR(ParseStatus(frame.payload, &why));
      FinishRequest(request->id(), why, Tell::kNo, now);
      return Ok();
    }
    case FrameType::kDone:
      if (!frame.payload.empty()) return Corrupt("DONE payload has trailing bytes");
      if (!request->AllEndsSent()) return Corrupt("DONE comes before all streams were sent");
      FinishRequest(request->id(), lynx::Ok(), Tell::kNo, now);
      return Ok();
    default:
      return Corrupt("frame type " + std::to_string(int(frame.header.type)) + " is not for a prefill node");
  }
}

Status TransferNode::Impl::OnNak(Peer* peer, OutgoingRequest* request, const FrameView& frame, TimeNs now) {
  LYNX_ASSIGN_OR_RETURN(const CumulativeBytes position, ParseCumulativeBytes(frame.payload));
  auto stream = request->Find(frame.header.part, frame.header.stream);
  if (!stream.ok()) return Corrupt("NAK: " + stream.status().message());
  bool exhausted = false;
  LYNX_RETURN_IF_ERROR(request->OnNak(*stream, position.bytes, &exhausted));
  peer->stats.naks += 1;
  if (exhausted) {
    FinishRequest(request->id(), Corrupt("a page arrived damaged each time it was sent"), Tell::kYes, now);
    return Ok();
  }
  UpdateSendable(peer, *stream, now);
  MaybeEnd(peer, request, *stream);
  return Ok();
}

// Frames that only the prefill node sends.
Status TransferNode::Impl::OnDecodeFrame(Peer* peer, IncomingRequest* request, const FrameView& frame, TimeNs now) {
  switch (frame.header.type) {
    case FrameType::kOffer:
      return OnOffer(request, frame);
    case FrameType::kPrefillDone: {
      LYNX_ASSIGN_OR_RETURN(const PrefillDone done, ParsePrefillDone(frame.payload));
      LYNX_RETURN_IF_ERROR(request->OnPrefillDone());
      events.push_back(PrefillDoneArrived{request->id(), done});
      return Ok();
    }
    case FrameType::kAvailable: {
      LYNX_ASSIGN_OR_RETURN(const CumulativeBytes available, ParseCumulativeBytes(frame.payload));
      LYNX_ASSIGN_OR_RETURN(IncomingStream* const stream, request->Find(frame.header.part, frame.header.stream));
      LYNX_RETURN_IF_ERROR(request->OnAvailable(stream, available.bytes));
      if (request->accepted()) window.Want(stream);
      return Ok();
    }
    case FrameType::kPage:
      return frame.payload_ok ? OnPage(peer, request, frame, now) : OnDamagedPage(peer, request, frame, now);
    case FrameType::kEnd:
      return OnEnd(request, frame, now);
    case FrameType::kAbort: {
      Status why;
      LYNX_RETURN_IF_ERROR(ParseStatus(frame.payload, &why));
      FinishRequest(request->id(), why, Tell::kNo, now);
      return Ok();
    }
    default:
      return Corrupt("frame type " + std::to_string(int(frame.header.type)) + " is not for a decode node");
  }
}

Status TransferNode::Impl::OnOffer(IncomingRequest* request, const FrameView& frame) {
  LYNX_ASSIGN_OR_RETURN(const TransferOffer offer, ParseOffer(frame.payload));
  LYNX_RETURN_IF_ERROR(request->OnOffer(offer, config.order));
  events.push_back(OfferArrived{request->id(), offer});
  return Ok();
}

Status TransferNode::Impl::OnPage(Peer* peer, IncomingRequest* request, const FrameView& frame, TimeNs now) {
  std::span<const std::byte> bytes;
  LYNX_ASSIGN_OR_RETURN(const PageFragment fragment, ParsePage(frame.payload, &bytes));
  LYNX_ASSIGN_OR_RETURN(IncomingStream* const stream, request->Find(frame.header.part, frame.header.stream));
  std::optional<PageArrived> arrived;
  LYNX_RETURN_IF_ERROR(request->OnPage(stream, fragment, bytes, kFrameHeaderBytes + frame.payload.size(),
                                       config.limits.max_page_stream_bytes, &arrived));
  window.OnReceived(*stream, bytes.size());
  OnPageData(peer, stream, now);
  if (request->LostTooMuch(*stream)) {
    FailDamaged(request, now);
    return Ok();
  }
  if (!arrived) return Ok();
  peer->granted[stream->priority] = stream;  // acknowledges it
  events.push_back(std::move(*arrived));
  return Ok();
}

// The sender is told where the frame began, in front of any grant that passes it.
Status TransferNode::Impl::OnDamagedPage(Peer* peer, IncomingRequest* request, const FrameView& frame, TimeNs now) {
  LYNX_ASSIGN_OR_RETURN(IncomingStream* const stream, request->Find(frame.header.part, frame.header.stream));
  const std::uint64_t position = stream->received_bytes;
  LYNX_RETURN_IF_ERROR(request->OnDamagedPage(stream, frame.payload.size()));
  window.OnReceived(*stream, stream->received_bytes - position);
  OnPageData(peer, stream, now);
  peer->stats.naks += 1;
  if (request->LostTooMuch(*stream)) {
    FailDamaged(request, now);
  } else {
    peer->Queue(peer->StreamHeader(FrameType::kNak, *stream), CumulativeBytes{position});
  }
  return Ok();
}

void TransferNode::Impl::FailDamaged(IncomingRequest* request, TimeNs now) {
  FinishRequest(request->id(), Corrupt("pages arrived damaged each time they were sent"), Tell::kYes, now);
}

Status TransferNode::Impl::OnEnd(IncomingRequest* request, const FrameView& frame, TimeNs now) {
  LYNX_ASSIGN_OR_RETURN(const StreamEnd end, ParseStreamEnd(frame.payload));
  LYNX_ASSIGN_OR_RETURN(IncomingStream* const stream, request->Find(frame.header.part, frame.header.stream));
  bool fits = false;
  LYNX_RETURN_IF_ERROR(request->OnEnd(stream, end, &fits));
  if (!fits) {
    FinishRequest(request->id(), Corrupt("END: totals or digest differ from the pages that arrived"), Tell::kYes, now);
    return Ok();
  }
  for (const StreamCompleted& completed : request->TakeCompleted()) events.push_back(completed);
  if (request->complete()) FinishRequest(request->id(), lynx::Ok(), Tell::kYes, now);
  return Ok();
}

}  // namespace lynx
