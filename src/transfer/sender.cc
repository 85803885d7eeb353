#include "transfer/sender.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/seeded_bug.h"
#include "base/status_macros.h"

namespace lynx {
namespace {

// Damaged copies never were.
void AddPage(const OutgoingStream::OutgoingPage& page, StreamEnd* end) {
  if (page.damaged) return;
  end->pages += 1;
  end->bytes += page.end - page.begin;
  end->digest = AddToDigest(end->digest, page.crc);
}

}  // namespace

Status OutgoingRequest::Offer(const TransferOffer& offer, SendOrder order) {
  if (offer_) return Invalid("request was offered before");
  LYNX_RETURN_IF_ERROR(CheckOffer(offer));
  offer_ = offer;
  pushed_bytes_.assign(offer.stream_count, 0);
  streams_ = MakeStreams<OutgoingStream>(id_, offer, order, turn_);
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
  stream->pages.push_back({.address = address, .bytes = std::move(bytes)});
  return Ok();
}

Status OutgoingRequest::OnGrant(OutgoingStream* stream, const StreamGrant& grant) {
  if (grant.bytes < stream->granted || grant.bytes > offer_->max_bytes[std::size_t(stream->stream)] + stream->renewed) {
    return Corrupt("GRANT shrinks or exceeds what was offered");
  }
  if (grant.acknowledged < stream->acknowledged_bytes || grant.acknowledged > stream->sent_bytes) {
    return Corrupt("GRANT acknowledges less than before or more than was sent");
  }
  stream->granted = grant.bytes;
  stream->acknowledged_bytes = grant.acknowledged;
  if (kSeededBug == SeededBug::kPageLeaked) return Ok();
  while (!stream->sent.empty() && stream->sent.front().end <= grant.acknowledged) {
    AddPage(stream->sent.front(), &stream->acknowledged);
    stream->sent.pop_front();
  }
  return Ok();
}

// The page may still be on its way out: it begins again when it has ended. Several of its frames may be damaged.
Status OutgoingRequest::OnNak(OutgoingStream* stream, std::uint64_t position, bool* exhausted) {
  const auto found = std::upper_bound(stream->sent.begin(), stream->sent.end(), position,
                                      [](std::uint64_t at, const auto& sent) { return at < sent.end; });
  const bool whole = found != stream->sent.end();
  if (position < (whole ? found->begin : stream->sent_bytes - stream->page_offset) || position >= stream->sent_bytes) {
    return Corrupt("NAK names bytes that are not on their way");
  }
  OutgoingStream::OutgoingPage* page = whole ? &*found : &stream->pages.front();
  stream->acknowledged.naks += 1;
  stream->end_sent = false;
  if (std::exchange(page->damaged, true)) return Ok();
  *exhausted = page->resends == kMaxResends;
  if (whole) stream->SendAgain(page);
  return Ok();
}

// A new copy at the end of the queue; `page` stays where it is to answer for its position.
void OutgoingStream::SendAgain(OutgoingPage* page) {
  available += page->bytes->size();
  renewed += page->bytes->size();
  pages.push_back({.address = page->address, .bytes = std::move(page->bytes), .resends = page->resends + 1});
}

StreamEnd OutgoingStream::End() const {
  StreamEnd end = acknowledged;
  for (const OutgoingPage& page : sent) AddPage(page, &end);
  return end;
}

void OutgoingStream::WriteFragment(const FrameHeader& header, std::uint32_t max_payload_bytes,
                                   std::vector<std::byte>* out) {
  LYNX_CHECK(CanSend() && max_payload_bytes > kPageHeaderBytes);
  OutgoingPage& page = pages.front();
  const auto total = std::uint32_t(page.bytes->size());
  const auto length = std::uint32_t(
      std::min<std::uint64_t>({max_payload_bytes - kPageHeaderBytes, total - page_offset, granted - sent_bytes}));
  const auto bytes = std::span(*page.bytes).subspan(page_offset, length);

  const std::size_t begin = BeginFrame(out);
  Encode(PageFragment{page.address, total, page_offset}, out);
  out->insert(out->end(), bytes.begin(), bytes.end());
  EndFrame(header, begin, out);

  if (page_offset == 0) page.begin = sent_bytes;
  page.crc = Crc32c(bytes, page.crc);
  page_offset += length;
  sent_bytes += length;
  if (page_offset < total) return;
  page_offset = 0;
  page.end = sent_bytes;
  sent.push_back(std::move(page));
  pages.pop_front();
  if (sent.back().damaged) SendAgain(&sent.back());
}

bool OutgoingRequest::HoldsBytes() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream.HoldsBytes(); });
}

bool OutgoingRequest::AllEndsSent() const {
  return offer_ && std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream.end_sent; });
}

}  // namespace lynx
