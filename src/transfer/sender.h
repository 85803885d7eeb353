// The prefill side of one request: page streams in, fragments out, one queue for each part of each stream.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lynx/transfer.h"
#include "transfer/order.h"

namespace lynx {

// One part of one stream on its way out. All byte counts are of page streams, without frames; positions count what is
// sent again too. A page's bytes are kept until the receiver has acknowledged it.
struct OutgoingStream {
  struct OutgoingPage {
    PageAddress address;
    SharedBytes bytes;
    std::uint32_t resends = 0;  // of this page before this copy
    std::uint64_t begin = 0;    // its position, once it has begun
    std::uint64_t end = 0;
    std::uint32_t crc = 0;  // of the bytes that are sent
    bool damaged = false;   // NAK has come for this copy
  };
  RequestId request;
  int stream = 0;
  int part = 0;
  Priority priority;
  std::deque<OutgoingPage> pages;  // not sent, or not wholly
  std::uint32_t page_offset = 0;   // of the first page's unsent bytes
  std::deque<OutgoingPage> sent;   // whole and not acknowledged
  StreamEnd acknowledged;          // pages that have arrived
  std::uint64_t acknowledged_bytes = 0;
  std::uint64_t available = 0;  // pushed, sent or not
  std::uint64_t announced = 0;  // by AVAILABLE
  std::uint64_t renewed = 0;    // of them, sent again
  std::uint64_t granted = 0;
  std::uint64_t sent_bytes = 0;
  bool ended = false;  // no more pages will be pushed
  bool end_sent = false;
  TimeNs hold_until_ns = 0;  // while it waits: till then it holds higher streams of other peers back

  bool CanSend() const { return !pages.empty() && granted > sent_bytes; }
  // Bytes are ready and the receiver takes this stream, but its grants may be on their way.
  bool IsWaiting() const { return !pages.empty() && granted > 0; }
  bool AllSent() const { return ended && pages.empty(); }
  // What the receiver has not taken yet.
  bool HoldsBytes() const { return !pages.empty() || !sent.empty(); }
  // What END says once all is sent.
  StreamEnd End() const;
  // Appends the next fragment as a PAGE frame with this header and at most `max_payload_bytes`. Requires CanSend.
  void WriteFragment(const FrameHeader& header, std::uint32_t max_payload_bytes, std::vector<std::byte>* out);

 private:
  friend class OutgoingRequest;
  void SendAgain(OutgoingPage* page);
};

class OutgoingRequest {
 public:
  OutgoingRequest(RequestId id, const Turn& turn) : id_(id), turn_(turn) {}

  RequestId id() const { return id_; }
  TimeNs deadline_ns() const { return turn_.deadline_ns; }
  std::vector<OutgoingStream>& streams() { return streams_; }

  // kInvalid: offered before, or the offer is out of range.
  Status Offer(const TransferOffer& offer, SendOrder order);
  // kInvalid when the request was not offered or has no such stream or part.
  Result<OutgoingStream*> Find(int part, int stream);
  // kInvalid: a closed stream, an address or a length that cannot travel, or more bytes than were offered.
  Status Push(OutgoingStream* stream, const PageAddress& address, SharedBytes bytes,
              std::uint64_t max_page_stream_bytes);
  // Frees what is acknowledged. kCorrupt: a grant that shrinks or exceeds the offer, or what was sent.
  Status OnGrant(OutgoingStream* stream, const StreamGrant& grant);
  // The page at this position has to be sent again; *exhausted: it was, kMaxResends times. kCorrupt: no page is there.
  Status OnNak(OutgoingStream* stream, std::uint64_t position, bool* exhausted);

  bool prefill_done = false;  // PREFILL_DONE is queued: ENDs may follow
  std::size_t prompt_tokens = 0;
  bool AllEndsSent() const;
  bool HoldsBytes() const;

 private:
  RequestId id_;
  Turn turn_;
  std::optional<TransferOffer> offer_;
  std::vector<OutgoingStream> streams_;      // as MakeStreams orders them
  std::vector<std::uint64_t> pushed_bytes_;  // per stream, over all parts
};

}  // namespace lynx
