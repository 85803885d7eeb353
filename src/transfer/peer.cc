#include "transfer/peer.h"

#include <algorithm>
#include <utility>

#include "base/seeded_bug.h"
#include "base/status_macros.h"

namespace lynx {
namespace {

// A round trip that is larger by less than a quarter is the same route.
constexpr TimeNs kNoise = 4;

std::string RoleName(NodeRole role) { return role == NodeRole::kPrefill ? "prefill" : "decode"; }

Hello MakeHello(const NodeConfig& config) {
  Hello hello;
  hello.role = config.role;
  hello.epoch = config.epoch;
  hello.name = config.name;
  hello.layout = config.layout;
  hello.codecs = config.codecs;
  hello.limits = config.limits;
  return hello;
}

template <typename Stream>
void EraseStreams(const std::vector<Stream>& streams, std::map<Priority, Stream*>* from) {
  for (const Stream& stream : streams) from->erase(stream.priority);
}

}  // namespace

Peer::Peer(PeerId id, const NodeConfig& config, TimeNs now)
    : reader(FrameLimits{}), taken_ns(now), received_ns(now), id_(id), config_(config), began_ns_(now) {
  Queue(Header(FrameType::kHello), MakeHello(config));
}

Status Peer::OnHello(const FrameHeader& header, const Hello& hello, TimeNs now) {
  if (hello_) return Corrupt("HELLO comes twice");
  if (hello.wire_version_min > kWireVersionMax || hello.wire_version_max < kWireVersionMin) {
    return Unsupported("wire version differs: here " + std::to_string(kWireVersionMin) + " to " +
                       std::to_string(kWireVersionMax) + ", there " + std::to_string(hello.wire_version_min) + " to " +
                       std::to_string(hello.wire_version_max));
  }
  if (header.epoch_tag != EpochTag(hello.epoch)) return Corrupt("HELLO: epoch differs from its frame's");
  if (hello.role == config_.role) return Unsupported("role: both nodes are " + RoleName(hello.role) + " nodes");
  if (hello.limits.max_frame_bytes < kMinFrameBytes) return Unsupported("limits: max_frame_bytes is too small");
  LYNX_RETURN_IF_ERROR(CompareLayouts(config_.layout, hello.layout));
  hello_ = hello;
  state = PeerState::kUp;
  reader.set_limits({config_.limits.max_frame_bytes, config_.limits.max_prompt_tokens});
  ping_due_ = true;  // the first round trip is the one with the emptiest queues
  ping_at_ns_ = now + config_.heartbeat_ns;
  return Ok();
}

Status Peer::CheckFrame(const FrameHeader& header) const {
  if (header.type == FrameType::kHello || (header.type == FrameType::kError && !hello_)) return Ok();
  if (!hello_) return Corrupt("frame comes before HELLO");
  if (header.epoch_tag != EpochTag(hello_->epoch) && kSeededBug != SeededBug::kEpochIgnored)
    return Corrupt("frame is of another epoch: the peer has restarted");
  return Ok();
}

bool Peer::Knows(const std::string& codec) const {
  const std::string name = codec.substr(0, codec.find(':'));
  return std::any_of(hello_->codecs.begin(), hello_->codecs.end(),
                     [&](const std::string& known) { return known == codec || known == name; });
}

// Only the answer to the last PING is a round trip that this node has measured itself.
void Peer::OnPong(const Pong& pong, TimeNs now) {
  stats.peer_load = pong.open_requests;
  if (pong.sent_ns != ping_sent_ns_ || now <= ping_sent_ns_) return;
  const TimeNs rtt = now - ping_sent_ns_;
  round_trips_.emplace_back(now, rtt);
  while (now - round_trips_.front().first >= kRoundTripNs) round_trips_.pop_front();
  const TimeNs best = std::min_element(round_trips_.begin(), round_trips_.end(), [](const auto& a, const auto& b) {
                        return a.second < b.second;
                      })->second;
  if (!probing_ && stats.min_rtt_ns != 0 && best > stats.min_rtt_ns + stats.min_rtt_ns / kNoise) {
    probing_ = true;
    ping_at_ns_ = std::min(ping_at_ns_, now + 2 * rtt);
    return;
  }
  probing_ = false;
  stats.min_rtt_ns = best;
}

Status Peer::Tick(TimeNs now) {
  switch (state) {
    case PeerState::kHandshake:
      if (now - began_ns_ >= kHandshakeNs) return IoError("peer did not complete the handshake within 5 s");
      break;
    case PeerState::kUp:
      if (now - received_ns >= kMissedHeartbeats * config_.heartbeat_ns) {
        return IoError("peer has missed " + std::to_string(kMissedHeartbeats) + " heartbeats");
      }
      if (now >= ping_at_ns_) {
        ping_due_ = true;
        ping_at_ns_ = now + config_.heartbeat_ns;
      }
      break;
    case PeerState::kDown:
      if (now - down_ns_ >= kLingerNs) lingered_ = true;
      break;
  }
  return Ok();
}

TimeNs Peer::NextTimeout() const {
  switch (state) {
    case PeerState::kHandshake:
      return began_ns_ + kHandshakeNs;
    case PeerState::kUp:
      return std::min(received_ns + kMissedHeartbeats * config_.heartbeat_ns, ping_at_ns_);
    case PeerState::kDown:
      break;
  }
  return WantsClose() ? kNoDeadline : down_ns_ + kLingerNs;
}

FrameHeader Peer::Header(FrameType type, std::uint64_t request) const {
  FrameHeader header;
  header.type = type;
  header.request = request;
  header.epoch_tag = EpochTag(config_.epoch);
  return header;
}

void Peer::QueueBytes(const FrameHeader& header, std::span<const std::byte> payload) {
  std::vector<std::byte> frame;
  AppendFrame(header, payload, &frame);
  control_.push_back(std::move(frame));
}

void Peer::WriteControl(std::size_t end, std::uint32_t open_requests, TimeNs now, std::vector<std::byte>* out) {
  while (!control_.empty() && out->size() < end) {
    out->insert(out->end(), control_.front().begin(), control_.front().end());
    control_.pop_front();
  }
  if (!control_.empty() || state != PeerState::kUp) return;
  std::vector<std::byte> payload;
  const auto append = [&](const FrameHeader& header, const auto& value) {
    payload.clear();
    Encode(value, &payload);
    AppendFrame(header, payload, out);
  };
  if (pong_sent_ns && out->size() < end) {
    append(Header(FrameType::kPong), Pong{*pong_sent_ns, open_requests});
    pong_sent_ns.reset();
  }
  if (ping_due_ && out->size() < end) {
    append(Header(FrameType::kPing), Ping{now});
    ping_sent_ns_ = now;
    ping_due_ = false;
  }
  while (!granted.empty() && out->size() < end) {
    const IncomingStream& stream = *granted.begin()->second;
    append(StreamHeader(FrameType::kGrant, stream), StreamGrant{stream.granted, stream.Acknowledged()});
    granted.erase(granted.begin());
  }
  while (!available.empty() && out->size() < end) {
    OutgoingStream& stream = *available.begin()->second;
    append(StreamHeader(FrameType::kAvailable, stream), CumulativeBytes{stream.available});
    stream.announced = stream.available;
    available.erase(available.begin());
  }
}

void Peer::Drop(OutgoingRequest* request) {
  EraseStreams(request->streams(), &sendable);
  EraseStreams(request->streams(), &waiting);
  EraseStreams(request->streams(), &available);
}

void Peer::Drop(IncomingRequest* request) { EraseStreams(request->streams(), &granted); }

void Peer::Close(const Status& why, bool tell, TimeNs now) {
  state = PeerState::kDown;
  down_ns_ = now;
  control_.clear();
  if (tell) Queue(Header(FrameType::kError), why);
}

}  // namespace lynx
