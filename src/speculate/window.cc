#include "speculate/window.h"

#include <algorithm>

namespace lynx {

int DraftsAllowed(std::int64_t now_ns, std::optional<std::int64_t> arrival_ns, std::int64_t step_ns, int standing,
                  int cap) {
  if (!arrival_ns || step_ns <= 0) return cap;
  if (*arrival_ns <= now_ns) return std::min(standing, cap);
  // The difference of any two clock readings fits unsigned.
  const std::uint64_t left_ns = std::uint64_t(*arrival_ns) - std::uint64_t(now_ns);
  const std::uint64_t steps = left_ns / std::uint64_t(step_ns);
  const int room = std::max(0, cap - standing);
  return std::min(standing, cap) + int(std::min<std::uint64_t>(steps, std::uint64_t(room)));
}

}  // namespace lynx
