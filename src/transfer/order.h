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

// The parts of all streams of an offer, each with its priority: index stream * part_count + part. A one-stream transfer
// has no small first stream that somebody waits for: it competes as stream 1.
template <typename Stream>  // IncomingStream, OutgoingStream
std::vector<Stream> MakeStreams(RequestId request, const TransferOffer& offer, SendOrder order, TimeNs deadline_ns,
                                std::uint64_t arrival) {
  std::vector<Stream> streams(std::size_t{offer.stream_count} * offer.part_count);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    Stream& made = streams[i];
    made.request = request;
    made.stream = int(i / offer.part_count);
    made.part = int(i % offer.part_count);
    made.priority = {offer.stream_count == 1 ? 1 : made.stream, deadline_ns, arrival, made.stream, made.part};
    if (order == SendOrder::kFifo || kSeededBug == SeededBug::kFifoOrder)
      made.priority = {0, kNoDeadline, arrival, made.stream, made.part};
  }
  return streams;
}

}  // namespace lynx
