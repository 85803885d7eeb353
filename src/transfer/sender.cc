#include "transfer/sender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace lynx {

Status OutgoingRequest::Offer(const TransferOffer& offer, SendOrder order) {
  if (offer_) return Invalid("request was offered before");
  LYNX_RETURN_IF_ERROR(CheckOffer(offer));
  offer_ = offer;
  pushed_bytes_.assign(offer.stream_count, 0);
  streams_ = MakeStreams<OutgoingStream>(id_, offer, order, deadline_ns_, arrival_);
  return Ok();
}

Result<OutgoingStream*> OutgoingRequest::Find(int part, int stream) {
  if (!offer_) return Invalid("request was not offered yet");
  if (part < 0 || stream < 0 || std::uint32_t(part) >= offer_->part_count ||
      std::uint32_t(stream) >= offer_->stream_count) {
    return Invalid("request has no such stream or part");
  }
  return &streams_[std::size_t(stream) * offer_->part_count + std::size_t(part)];
}

Status OutgoingRequest::Push(OutgoingStream* stream, const PageAddress& address, SharedBytes bytes,
                             std::uint64_t max_page_stream_bytes) {
  if (stream->ended) return Invalid("stream was ended: no page may follow");
  if (bytes == nullptr || bytes->empty()) return Invalid("page stream is empty");
  if (bytes->size() > std::min<std::uint64_t>(max_page_stream_bytes, UINT32_MAX)) {
    return Invalid("page stream is longer than the peer's max_page_stream_bytes");
  }
  LYNX_RETURN_IF_ERROR(CheckWireAddress(address));
  std::uint64_t& pushed = pushed_bytes_[std::size_t(stream->stream)];
  if (bytes->size() > offer_->max_bytes[std::size_t(stream->stream)] - pushed) {
    return Invalid("page streams are longer than the max_bytes that were offered");
  }
  pushed += bytes->size();
  stream->available += bytes->size();
  stream->pages.push_back({address, std::move(bytes)});
  return Ok();
}

Status OutgoingRequest::OnGrant(OutgoingStream* stream, std::uint64_t granted, TimeNs now) {
  if (granted < stream->granted || granted > offer_->max_bytes[std::size_t(stream->stream)]) {
    return Corrupt("GRANT shrinks or exceeds what was offered");
  }
  stream->granted = granted;
  stream->moved_ns = now;
  return Ok();
}

void OutgoingStream::WriteFragment(const FrameHeader& header, std::uint32_t max_payload_bytes, TimeNs now,
                                   std::vector<std::byte>* out) {
  LYNX_CHECK(CanSend() && max_payload_bytes > kPageHeaderBytes);
  const PageInQueue& page = pages.front();
  const auto total = std::uint32_t(page.bytes->size());
  const auto length = std::uint32_t(
      std::min<std::uint64_t>({max_payload_bytes - kPageHeaderBytes, total - page_offset, granted - sent_bytes}));
  const auto bytes = std::span(*page.bytes).subspan(page_offset, length);

  const std::size_t begin = BeginFrame(out);
  Encode(PageFragment{page.address, total, page_offset}, out);
  out->insert(out->end(), bytes.begin(), bytes.end());
  EndFrame(header, begin, out);

  page_crc = Crc32c(bytes, page_crc);
  page_offset += length;
  sent_bytes += length;
  moved_ns = now;
  if (page_offset < total) return;
  sent.pages += 1;
  sent.bytes += total;
  sent.digest = AddToDigest(sent.digest, page_crc);
  page_offset = page_crc = 0;
  pages.pop_front();
}

bool OutgoingRequest::AllEndsSent() const {
  return offer_ && std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream.end_sent; });
}

}  // namespace lynx
