// The decode side of one request: frames in, whole page streams and completed streams out.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "lynx/transfer.h"
#include "transfer/order.h"

namespace lynx {

// More pages than this in one stream of one request are refused: they would cost memory that no offer announced.
inline constexpr std::uint64_t kMaxPagesPerStream = 1 << 20;

// One part of one stream on its way in. All byte counts are of page streams, without frames; positions count copies
// that arrived damaged too.
struct IncomingStream {
  RequestId request;
  int stream = 0;
  int part = 0;
  Priority priority;
  std::uint64_t available = 0;  // the sender has them ready
  std::uint64_t granted = 0;
  TimeNs first_grant_ns = 0;         // once granted > 0
  std::uint64_t received_bytes = 0;  // a position
  StreamEnd received;                // whole pages, and NAKs
  TimeNs moved_ns = 0;               // last fragment, or the first grant after nothing was on its way
  bool ended = false;
  bool lost = false;  // the page that is arriving is damaged: its other fragments are of no use
  // The page stream that is arriving; null between two, or if it is lost.
  std::shared_ptr<std::vector<std::byte>> page;
  std::uint32_t page_total = 0;
  PageAddress page_address;

  std::uint64_t Acknowledged() const { return received_bytes - (page == nullptr ? 0 : page->size()); }
  // Bytes that the sender could and may send have not come.
  bool IsWaiting() const { return std::min(granted, available) > received_bytes; }
};

class IncomingRequest {
 public:
  IncomingRequest(RequestId id, const Turn& turn) : id_(id), turn_(turn) {}

  RequestId id() const { return id_; }
  TimeNs deadline_ns() const { return turn_.deadline_ns; }
  std::vector<IncomingStream>& streams() { return streams_; }
  bool accepted() const { return accepted_; }
  bool complete() const { return offer_ && completed_ == int(offer_->stream_count); }

  // The frames of the request. Errors are the peer's fault and close the connection.
  Status OnOffer(const TransferOffer& offer, SendOrder order);
  Status OnPrefillDone();
  // kCorrupt when the request has no such stream or part.
  Result<IncomingStream*> Find(int part, int stream);
  Status OnAvailable(IncomingStream* stream, std::uint64_t available);
  // Takes a fragment of `frame_bytes` on the wire. Once its page stream is whole, *arrived is the page.
  Status OnPage(IncomingStream* stream, const PageFragment& fragment, std::span<const std::byte> bytes,
                std::size_t frame_bytes, std::uint64_t max_page_stream_bytes, std::optional<PageArrived>* arrived);
  // A PAGE frame of which only the header can be believed: its page is lost and the sender has to be told.
  Status OnDamagedPage(IncomingStream* stream, std::size_t payload_bytes);
  // More than if every page were sent again as often as it may be: the request fails.
  bool LostTooMuch(const IncomingStream& stream) const {
    return totals_[std::size_t(stream.stream)].lost > kMaxResends * MaxBytes(stream.stream);
  }
  // *fits is false when totals or digest differ from what arrived: the request fails, the connection need not.
  Status OnEnd(IncomingStream* stream, const StreamEnd& end, bool* fits);
  // When a fragment came last; kNoDeadline unless the sender owes some.
  TimeNs WaitsSince(const std::array<TimeNs, kMaxStreams>& class_moved_ns) const;
  // Streams that became complete, in order.
  std::vector<StreamCompleted> TakeCompleted();

  // kInvalid: no offer yet, or accepted before.
  Status Accept();
  std::uint64_t MaxBytes(int stream) const { return offer_->max_bytes[std::size_t(stream)]; }

 private:
  struct Totals {  // of one stream, over all parts
    std::uint64_t available = 0;
    std::uint64_t announced = 0;  // whole lengths of all page streams that have begun and are not lost
    std::uint64_t lost = 0;       // bytes that came in vain
    std::uint64_t wire_bytes = 0;
    std::uint32_t parts_ended = 0;
    std::set<PageAddress> addresses;
  };
  Status BeginPage(IncomingStream* stream, const PageFragment& fragment, std::uint64_t max_page_stream_bytes);
  void LosePage(IncomingStream* stream);
  Status AddAddress(const PageAddress& address, std::set<PageAddress>* addresses) const;

  RequestId id_;
  Turn turn_;
  std::optional<TransferOffer> offer_;
  bool accepted_ = false;
  bool prefill_done_ = false;
  int completed_ = 0;                    // streams
  std::vector<IncomingStream> streams_;  // as MakeStreams orders them
  std::vector<Totals> totals_;
};

}  // namespace lynx
