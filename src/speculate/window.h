// How many drafts are worth making.
#pragma once

#include <cstdint>
#include <optional>

namespace lynx {

// The most drafts that may stand (DraftWindow) when `standing` do at `now_ns`: as many more as whole draft steps of
// `step_ns` fit before `arrival_ns`, the estimated arrival of the last stream, and never more than `cap`. Without an
// estimate of the arrival, or of the step (step_ns <= 0), the cap. Times are of one monotonic clock.
int DraftsAllowed(std::int64_t now_ns, std::optional<std::int64_t> arrival_ns, std::int64_t step_ns, int standing,
                  int cap);

}  // namespace lynx
