// The order in which everything in a node competes: what is granted (receiver) and what is sent (sender) next.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

#include "lynx/transfer.h"

namespace lynx {

inline constexpr TimeNs kNoDeadline = std::numeric_limits<TimeNs>::max();

// A one-stream transfer has no small first stream that somebody waits for: it competes as stream 1.
inline int StreamClass(int stream, std::uint32_t stream_count) { return stream_count == 1 ? 1 : stream; }

// Lowest first. Unique for each part of each stream of a node.
struct Priority {
  int stream_class = 0;  // 0 for everything under kFifo
  TimeNs deadline_ns = kNoDeadline;
  std::uint64_t arrival = 0;  // of the request at this node
  int stream = 0;
  int part = 0;
  auto operator<=>(const Priority&) const = default;
};

inline Priority MakePriority(SendOrder order, int stream_class, TimeNs deadline_ns, std::uint64_t arrival, int stream,
                             int part) {
  if (order == SendOrder::kFifo) return {0, kNoDeadline, arrival, stream, part};
  return {stream_class, deadline_ns, arrival, stream, part};
}

}  // namespace lynx
