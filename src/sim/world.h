// Virtual time, chance and the record of one simulated run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "lynx/wire.h"

namespace lynx {

// What a run may contain. Every one must occur among enough seeds: a fault that never happens proves nothing.
enum class Seen : std::uint8_t {
  // faults
  kCut,
  kBlackholeOneWay,
  kBlackholeBothWays,
  kStall,
  kSlowReader,
  kTrickle,
  kBitFlip,
  kHeaderFlip,
  kWordSwap,
  kFrameDropped,
  kFrameDoubled,
  kFrameReplayed,
  kNodeStopped,
  kNodeStoppedForEver,
  kNodeKilled,
  kHostLost,
  kNodeRestarted,
  kClientLeft,
  kShortDeadline,
  kResidualHeldBack,
  kPageMissing,
  kPrefillFailed,
  // what followed
  kCompleted,
  kEndOfText,
  kContextFull,
  kOneStream,
  kRetried,
  kRetriedCompleted,
  kStopped,
  kDeadlinePassed,
  kBusy,
  kLost,
  kCorrupt,
  kRefused,
  kNobodyUp,
  kNodeGone,
  kPeerDead,
  kDraftAccepted,
  kDraftRejected,
  kStreamBeforeDraft,
  kStreamDuringDraft,
  kStreamAfterDrafts,
  kStreamSkipped,
  kStepShared,
  kPageResent,
  kNothingWrong,
  kCount,
};
std::string_view SeenName(Seen seen);
inline constexpr std::size_t kSeenCount = std::size_t(Seen::kCount);
using SeenCounts = std::array<std::uint64_t, kSeenCount>;

class World {
 public:
  // `log` gets one line per event; may be empty.
  World(std::uint64_t seed, std::function<void(std::string_view line)> log);

  TimeNs now() const { return now_; }  // from 0
  void After(TimeNs delay, std::function<void()> what);
  // Runs the next event that is due by `until`. False: there is none, and it is `until`.
  bool Step(TimeNs until);

  Random& random() { return random_; }
  std::uint64_t Below(std::uint64_t bound) { return random_.Below(bound); }
  bool Chance(double probability) { return random_.Unit() < probability; }
  std::int64_t Between(std::int64_t first, std::int64_t last) {
    return std::int64_t(std::uint64_t(first) + random_.Below(std::uint64_t(last) - std::uint64_t(first) + 1));
  }
  // Evenly by magnitude.
  std::int64_t Magnitude(std::int64_t first, std::int64_t last);

  // Some receiver takes little at a time. Its anchors may hold others' residuals back for as long as they want: strict
  // priority knows no promotion by waiting time (docs/protocol.md). So any deadline may pass.
  void NoteSlowness() { slow_ = true; }
  bool slow() const { return slow_; }

  bool logs() const { return bool(log_); }
  void Log(std::string_view who, std::string_view what) const;
  // A promise (P1…P7) was broken.
  void Violate(std::string_view promise, std::string_view what);
  void Note(Seen seen) { ++counts_[std::size_t(seen)]; }

  const std::vector<std::string>& violations() const { return violations_; }
  const SeenCounts& counts() const { return counts_; }
  std::uint64_t events() const { return next_; }

 private:
  struct Event {
    TimeNs when;
    std::uint64_t number;  // in the order in which they were asked for
    std::function<void()> what;
    bool operator<(const Event& other) const {  // the heap's front is the largest
      return std::pair(when, number) > std::pair(other.when, other.number);
    }
  };

  Random random_;
  std::function<void(std::string_view line)> log_;
  TimeNs now_ = 0;
  std::uint64_t next_ = 0;
  bool slow_ = false;
  std::vector<Event> agenda_;
  std::vector<std::string> violations_;
  SeenCounts counts_{};
};

}  // namespace lynx
