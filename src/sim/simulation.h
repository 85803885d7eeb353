// Whole systems in virtual time: prefill nodes, decode nodes, connections, clients and faults from one seed, and the
// promises P1…P7 checked while they run and after the end.
//
//   P1 no token from bytes that were not checked for checksum, epoch and request   P2 committed tokens equal Q_full's
//   P3 every request reaches one terminal state in time   P4 memory is bounded   P5 anchors never wait behind residuals
//   P6 a fault hurts only the requests on its own connections   P7 nothing is left
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/world.h"

namespace lynx {

struct SimReport {
  std::vector<std::string> violations;
  SeenCounts counts{};
  std::uint64_t events = 0;
};

// The same seed gives the same run, event for event, on every machine. `log` gets one line per event; may be empty.
SimReport Simulate(std::uint64_t seed, const std::function<void(std::string_view line)>& log = {});

}  // namespace lynx
