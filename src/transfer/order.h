// The order in which everything in a node competes: what is granted (receiver) and what is sent (sender) next.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/seeded_bug.h"
#include "lynx/transfer.h"

namespace lynx {

inline constexpr TimeNs kNoDeadline = std::numeric_limits<TimeNs>::max();

// Lowest first. Unique for each part of each stream of a node.
struct Priority {
  int stream_class = 0;  // 0 for everything under kFifo
  TimeNs deadline_ns = kNoDeadline;
  std::uint64_t arrival = 0;  // of the request at this node
  int stream = 0;
  int part = 0;
  auto operator<=>(const Priority&) const = default;
};

// Of a request among others of its node.
struct Turn {
  bool anchor_first = true;
  TimeNs deadline_ns = kNoDeadline;
  std::uint64_t arrival = 0;
};

// The parts of all streams of an offer, each with its priority: index stream * part_count + part. Where nobody waits
// for a small first stream, because there is but one or it does not go first, all compete as stream 1.
template <typename Stream>  // IncomingStream, OutgoingStream
std::vector<Stream> MakeStreams(RequestId request, const TransferOffer& offer, SendOrder order, const Turn& turn) {
  const bool anchor_first = turn.anchor_first && offer.stream_count > 1;
  std::vector<Stream> streams(std::size_t{offer.stream_count} * offer.part_count);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    Stream& made = streams[i];
    made.request = request;
    made.stream = int(i / offer.part_count);
    made.part = int(i % offer.part_count);
    made.priority = {anchor_first ? made.stream : 1, turn.deadline_ns, turn.arrival, made.stream, made.part};
    if (order == SendOrder::kFifo || kSeededBug == SeededBug::kFifoOrder)
      made.priority = {0, kNoDeadline, turn.arrival, made.stream, made.part};
  }
  return streams;
}

}  // namespace lynx
