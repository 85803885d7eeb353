// How fast data flows, from the times at which it passed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lynx/transfer.h"

namespace lynx {

// Best recent rate. Data is counted in slots of at least 20 ms, long enough that a burst out of a socket buffer (about
// 1 MiB) does not look like a fast link; a pause ends a slot without a sample, as it says nothing about the link.
class RateEstimator {
 public:
  // `bytes` more have passed by `now`. True when the estimate was updated.
  bool Add(std::uint64_t bytes, TimeNs now) {
    if (now - last_ns_ > kPauseNs || last_ns_ == 0) {
      slot_begin_ns_ = last_ns_ = now;  // what comes first took its time before
      slot_bytes_ = 0;
      return false;
    }
    last_ns_ = now;
    slot_bytes_ += bytes;
    const TimeNs elapsed = now - slot_begin_ns_;
    if (elapsed < kSlotNs) return false;
    const double sample = double(slot_bytes_) / double(elapsed);
    best_ = sample > best_ ? sample : best_ + (sample - best_) / kForgetSlots;
    slot_begin_ns_ = now;
    slot_bytes_ = 0;
    return true;
  }

  double bytes_per_ns() const { return best_; }  // 0: not known yet

 private:
  static constexpr TimeNs kSlotNs = 20 * kMillisecondNs;
  static constexpr TimeNs kPauseNs = 100 * kMillisecondNs;
  static constexpr double kForgetSlots = 64;  // a slower link is believed after about a second

  TimeNs slot_begin_ns_ = 0;
  TimeNs last_ns_ = 0;
  std::uint64_t slot_bytes_ = 0;
  double best_ = 0;
};

// Payload of a PAGE frame: half a millisecond of data, so that a more urgent frame does not wait long behind it, and
// large enough to be cheap (measured: 64 KiB costs 0.23 CPU s/GB, 1 MiB 0.15).
inline std::uint32_t FrameBytes(double bytes_per_ns, std::uint32_t max_frame_bytes) {
  const double half_millisecond = bytes_per_ns * 0.5 * double(kMillisecondNs);
  return std::min(std::uint32_t(std::clamp(half_millisecond, 65536.0, 1048576.0)), max_frame_bytes);
}

}  // namespace lynx
