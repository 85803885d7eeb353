#include "transfer/receiver.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/crc32c.h"
#include "base/status_macros.h"

namespace lynx {

Status IncomingRequest::OnOffer(const TransferOffer& offer, SendOrder order) {
  if (offer_) return Corrupt("OFFER comes twice");
  offer_ = offer;
  totals_.resize(offer.stream_count);
  streams_ = MakeStreams<IncomingStream>(id_, offer, order, turn_);
  return Ok();
}

Status IncomingRequest::OnPrefillDone() {
  if (prefill_done_) return Corrupt("PREFILL_DONE comes twice");
  prefill_done_ = true;
  return Ok();
}

Result<IncomingStream*> IncomingRequest::Find(int part, int stream) {
  if (!offer_ || std::uint32_t(part) >= offer_->part_count || std::uint32_t(stream) >= offer_->stream_count) {
    return Corrupt("frame names a stream or part that was not offered");
  }
  return &streams_[std::size_t(stream) * offer_->part_count + std::size_t(part)];
}

Status IncomingRequest::OnAvailable(IncomingStream* stream, std::uint64_t available) {
  Totals& totals = totals_[std::size_t(stream->stream)];
  if (available < stream->available ||
      available - stream->available > MaxBytes(stream->stream) + totals.lost - totals.available) {
    return Corrupt("AVAILABLE shrinks or exceeds what was offered");
  }
  totals.available += available - stream->available;
  stream->available = available;
  return Ok();
}

Status IncomingRequest::Accept() {
  if (!offer_) return Invalid("nothing was offered yet");
  if (accepted_) return Invalid("offer was accepted before");
  accepted_ = true;
  return Ok();
}

// Inside the offered tokens, and no token of the same heads twice: in the order of addresses, pages of the same layer,
// kind and heads are neighbours, sorted by their first token.
Status IncomingRequest::AddAddress(const PageAddress& address, std::set<PageAddress>* addresses) const {
  const auto first = std::uint32_t(address.first_token);
  const auto count = std::uint32_t(address.token_count);
  if (first < offer_->first_token || first - offer_->first_token > offer_->token_count ||
      count > offer_->token_count - (first - offer_->first_token)) {
    return Corrupt("PAGE: token range lies outside the offer");
  }
  if (addresses->size() >= kMaxPagesPerStream) return LimitExceeded("PAGE: too many pages in one stream");
  const auto overlaps = [&address](const PageAddress& other) {
    const auto cut = [](const PageAddress& a) { return std::tuple(a.layer, a.kind, a.first_head, a.head_count); };
    return cut(other) == cut(address) && other.first_token < address.first_token + address.token_count &&
           address.first_token < other.first_token + other.token_count;
  };
  const auto next = addresses->lower_bound(address);
  if ((next != addresses->end() && overlaps(*next)) || (next != addresses->begin() && overlaps(*std::prev(next)))) {
    return Corrupt("PAGE: tokens of this page have arrived before");
  }
  addresses->insert(next, address);
  return Ok();
}

// All limits come before the allocation.
Status IncomingRequest::BeginPage(IncomingStream* stream, const PageFragment& fragment,
                                  std::uint64_t max_page_stream_bytes) {
  Totals& totals = totals_[std::size_t(stream->stream)];
  if (fragment.offset != 0) return Corrupt("PAGE: fragment does not continue a page stream");
  if (fragment.total > max_page_stream_bytes) return LimitExceeded("PAGE: longer than max_page_stream_bytes");
  if (fragment.total > MaxBytes(stream->stream) - totals.announced) {
    return Corrupt("PAGE: page streams are longer than the offer's max_bytes");
  }
  LYNX_RETURN_IF_ERROR(AddAddress(fragment.address, &totals.addresses));
  totals.announced += fragment.total;
  stream->page = std::make_shared<std::vector<std::byte>>();
  stream->page->reserve(fragment.total);
  stream->page_total = fragment.total;
  stream->page_address = fragment.address;
  stream->lost = false;
  return Ok();
}

// The page that is arriving will come again.
void IncomingRequest::LosePage(IncomingStream* stream) {
  stream->lost = true;
  if (stream->page == nullptr) return;
  Totals& totals = totals_[std::size_t(stream->stream)];
  totals.lost += stream->page->size();
  totals.announced -= stream->page_total;
  totals.addresses.erase(stream->page_address);
  stream->page = nullptr;
}

Status IncomingRequest::OnDamagedPage(IncomingStream* stream, std::size_t payload_bytes) {
  if (stream->ended) return Corrupt("PAGE: stream was ended");
  if (payload_bytes <= kPageHeaderBytes) return Corrupt("PAGE payload is too short");
  const std::uint64_t bytes = payload_bytes - kPageHeaderBytes;
  if (bytes > stream->granted - stream->received_bytes) return Corrupt("PAGE: bytes were not granted");
  LosePage(stream);
  Totals& totals = totals_[std::size_t(stream->stream)];
  stream->received_bytes += bytes;
  stream->received.naks += 1;
  totals.lost += bytes;
  totals.wire_bytes += kFrameHeaderBytes + payload_bytes;
  return Ok();
}

Status IncomingRequest::OnPage(IncomingStream* stream, const PageFragment& fragment, std::span<const std::byte> bytes,
                               std::size_t frame_bytes, std::uint64_t max_page_stream_bytes,
                               std::optional<PageArrived>* arrived) {
  Totals& totals = totals_[std::size_t(stream->stream)];
  if (stream->ended) return Corrupt("PAGE: stream was ended");
  if (bytes.size() > stream->granted - stream->received_bytes) return Corrupt("PAGE: bytes were not granted");
  if (stream->lost && fragment.offset > 0) {
    stream->received_bytes += bytes.size();
    totals.lost += bytes.size();
    totals.wire_bytes += frame_bytes;
    return Ok();
  }
  if (stream->page == nullptr) {
    LYNX_RETURN_IF_ERROR(BeginPage(stream, fragment, max_page_stream_bytes));
  } else if (fragment.address != stream->page_address || fragment.total != stream->page_total ||
             fragment.offset != stream->page->size()) {
    return Corrupt("PAGE: fragment does not continue its page stream");
  }
  stream->page->insert(stream->page->end(), bytes.begin(), bytes.end());
  stream->received_bytes += bytes.size();
  totals.wire_bytes += frame_bytes;
  if (stream->page->size() < stream->page_total) return Ok();

  stream->received.pages += 1;
  stream->received.bytes += stream->page_total;
  stream->received.digest = AddToDigest(stream->received.digest, Crc32c(*stream->page));
  arrived->emplace(
      PageArrived{id_, stream->part, stream->stream, stream->page_address, std::exchange(stream->page, nullptr)});
  return Ok();
}

Status IncomingRequest::OnEnd(IncomingStream* stream, const StreamEnd& end, bool* fits) {
  if (!prefill_done_) return Corrupt("END comes before PREFILL_DONE");
  if (stream->ended) return Corrupt("END comes twice");
  // Sent before the last NAK was read: another END follows the pages that were asked for.
  *fits = end.naks < stream->received.naks;
  if (*fits) return Ok();
  stream->ended = true;
  totals_[std::size_t(stream->stream)].parts_ended += 1;
  *fits = stream->page == nullptr && end == stream->received;
  return Ok();
}

// A stream that waits for a lower one to pass is not owed anything. Fragments of any stream of the request count.
TimeNs IncomingRequest::WaitsSince(const std::array<TimeNs, kMaxStreams>& class_moved_ns) const {
  TimeNs moved = 0;
  for (const IncomingStream& stream : streams_) moved = std::max(moved, stream.moved_ns);
  TimeNs since = kNoDeadline;
  for (const IncomingStream& stream : streams_) {
    if (!stream.IsWaiting()) continue;
    TimeNs lower = moved;
    for (int k = 0; k < stream.priority.stream_class; ++k) lower = std::max(lower, class_moved_ns[std::size_t(k)]);
    since = std::min(since, lower);
  }
  return since;
}

std::vector<StreamCompleted> IncomingRequest::TakeCompleted() {
  std::vector<StreamCompleted> completed;
  while (!complete() && totals_[std::size_t(completed_)].parts_ended == offer_->part_count) {
    const Totals& totals = totals_[std::size_t(completed_)];
    StreamCompleted& stream = completed.emplace_back(
        StreamCompleted{id_, completed_, 0, totals.wire_bytes, std::numeric_limits<TimeNs>::max()});
    for (std::size_t part = 0; part < offer_->part_count; ++part) {
      const IncomingStream& arrived = streams_[std::size_t(completed_) * offer_->part_count + part];
      stream.bytes += arrived.received.bytes;
      stream.first_grant_ns = std::min(stream.first_grant_ns, arrived.first_grant_ns);
    }
    ++completed_;
  }
  return completed;
}

}  // namespace lynx
