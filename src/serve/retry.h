// When the answer to a request begins again, sans-IO: what failed and when goes in, what to do comes out.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "base/random.h"
#include "lynx/result.h"
#include "lynx/sampling.h"
#include "lynx/wire.h"

namespace lynx {

// How long a request waits for a prefill node to come up.
inline constexpr TimeNs kPatienceNs = 2 * kSecondNs;

// The pause before a node is dialled again after it has failed `failures` times in a row. A quarter of jitter either
// way, so that nodes that lost the same peer don't come back at once.
inline TimeNs ReconnectPause(int failures, Random* random) {
  constexpr TimeNs kFirst = 100 * kMillisecondNs, kLongest = 5 * kSecondNs;
  return std::min(kFirst << std::min(failures, 10), kLongest) * TimeNs(75 + random->Below(51)) / 100;
}

// One request over all its tries, each with a transfer of its own. Times are of one monotonic clock.
class Retry {
 public:
  // At most `most` tries after the first. The deadline counts from `now` over all tries; deadline_ms 0: none.
  Retry(int most, std::uint32_t deadline_ms, TimeNs now)
      : most_(most), due_(deadline_ms == 0 ? std::nullopt : std::optional(now + deadline_ms * kMillisecondNs)) {}

  bool Expired(TimeNs now) const { return due_ && now >= *due_; }
  // The deadline_ms of a try that begins now; at least 1 if there is a deadline.
  std::uint32_t MillisecondsLeft(TimeNs now) const {
    if (!due_) return 0;
    return std::uint32_t(std::max<TimeNs>(1, (*due_ - now + kMillisecondNs - 1) / kMillisecondNs));
  }

  // No prefill node is up, for this reason. Ok: ask again; otherwise why the request ends.
  Status OnNobody(const Status& reason, TimeNs now) {
    if (!waits_since_) waits_since_ = now;
    if (now - *waits_since_ <= kPatienceNs) return Ok();
    return failure_.ok() ? reason : failure_;  // why it has to begin again says more than that nobody else is there
  }
  void OnBegin() { waits_since_.reset(); }

  // A try failed. True: another may begin, as nothing but token 0 is committed. With token0() as its first token.
  bool OnFailure(const Status& why, std::span<const Token> committed) {
    const bool may_pass = why.code() == ErrorCode::kIo || why.code() == ErrorCode::kCorrupt;
    if (!may_pass || committed.size() > 1 || count_ == most_) return false;
    ++count_;
    failure_ = why;
    if (!committed.empty()) token0_ = committed.front();
    return true;
  }

  int count() const { return count_; }
  const std::optional<Token>& token0() const { return token0_; }

 private:
  int most_;
  std::optional<TimeNs> due_;
  std::optional<TimeNs> waits_since_;
  std::optional<Token> token0_;
  int count_ = 0;
  Status failure_;  // that made it begin again
};

}  // namespace lynx
