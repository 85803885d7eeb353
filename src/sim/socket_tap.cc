#include "sim/socket_tap.h"

#include "sim/frame_harm.h"

namespace lynx {
namespace {

// docs/protocol.md: a peer that has taken nothing for 200 ms does not hold others back.
constexpr TimeNs kHold = 200 * kMillisecondNs;

}  // namespace

void SocketTap::OnPeerGone(PeerId peer) {
  peers_.erase(peer);
  std::erase_if(streams_, [peer](const auto& entry) { return std::get<RequestId>(entry.first).peer == peer; });
  std::erase_if(by_stream_, [peer](const auto& entry) { return entry.first.peer == peer; });
}

void SocketTap::OnRequestGone(RequestId request) {
  std::erase_if(streams_, [request](const auto& entry) { return std::get<RequestId>(entry.first) == request; });
  by_stream_.erase(request);
  resent_.erase(request);
}

void SocketTap::OnWritable(PeerId peer, bool writable, TimeNs now) {
  auto& since = peers_.at(peer).unwritable_since;
  if (writable) {
    since.reset();
  } else if (!since) {
    since = now;
  }
}

void SocketTap::OnReceived(PeerId peer, std::span<const std::byte> bytes, TimeNs now) {
  Connection& connection = peers_.at(peer);
  while (!connection.unreadable) {
    const auto frame = connection.reader.Next(&bytes);
    connection.unreadable = !frame.ok();
    if (!frame.ok() || !*frame) return;
    const FrameHeader& header = (*frame)->header;
    if (header.type == FrameType::kHello) connection.reader.set_limits({1 << 20, 1 << 20});
    const RequestId request{peer, header.request};
    const auto offered = by_stream_.find(request);
    if (header.type == FrameType::kNak) resent_.insert(request);
    if (header.type != FrameType::kGrant || !(*frame)->payload_ok || offered == by_stream_.end()) continue;
    const int stream_class = offered->second ? int(header.stream) : 1;
    Stream& stream = streams_[{stream_class, request, header.part, header.stream}];
    const auto grant = ParseStreamGrant((*frame)->payload);
    if (!grant.ok()) continue;
    if (stream.granted == 0) stream.moved = now;
    stream.granted = grant->bytes;
    stream.acknowledged = grant->acknowledged;
  }
}

std::optional<std::uint64_t> SocketTap::Acknowledged(RequestId request) const {
  if (resent_.contains(request)) return std::nullopt;
  std::uint64_t sum = 0;
  for (const auto& [key, stream] : streams_) sum += std::get<RequestId>(key) == request ? stream.acknowledged : 0;
  return sum;
}

bool SocketTap::LowerWaits(int stream_class, TimeNs now) const {
  for (const auto& [key, stream] : streams_) {
    if (std::get<0>(key) >= stream_class) break;
    const Connection& connection = peers_.at(std::get<RequestId>(key).peer);
    const auto& since = connection.unwritable_since;
    const bool takes = !since || (now - *since < kHold && now - stream.moved < kHold);
    if (stream.granted > stream.sent && takes) return true;
  }
  return false;
}

bool SocketTap::OnSent(PeerId peer, std::span<const std::byte> frames, TimeNs now) {
  bool kept = true;
  ForEachFrame(frames, [&](const FrameInPlace& frame, std::span<const std::byte>) {
    const RequestId request{peer, frame.request};
    const auto offered = by_stream_.find(request);
    if (frame.type != FrameType::kPage || offered == by_stream_.end()) return;
    const int stream_class = offered->second ? frame.stream : 1;
    kept = kept && !LowerWaits(stream_class, now);
    Stream& stream = streams_[{stream_class, request, frame.part, frame.stream}];
    stream.sent += frame.payload.size() - kPageHeaderBytes;
    stream.moved = now;
  });
  return kept;
}

}  // namespace lynx
