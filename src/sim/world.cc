#include "sim/world.h"

#include <algorithm>
#include <cstdio>

namespace lynx {
namespace {

constexpr std::size_t kMaxViolations = 20;

constexpr std::array<std::string_view, kSeenCount> kNames = {
    "connection cut",
    "blackhole, one way",
    "blackhole, both ways",
    "link stalls",
    "slow reader",
    "trickling writer",
    "bit flipped in a payload",
    "bit flipped in a header",
    "16-bit words swapped",
    "frame dropped",
    "frame doubled",
    "old frames replayed",
    "node stopped for a while",
    "node stopped for ever",
    "node killed",
    "host lost without a word",
    "node restarted, new epoch",
    "client left",
    "short deadline",
    "residual held back for ever",
    "page missing at END",
    "prefill failed",
    "completed",
    "ended by end of text",
    "ended by a full context",
    "completed with one stream",
    "begun again",
    "completed after beginning again",
    "stopped with what was committed",
    "deadline passed",
    "refused: busy",
    "connection lost",
    "damaged bytes refused",
    "refused by a node",
    "no prefill node up",
    "decode node gone",
    "dead peer found by heartbeat",
    "draft accepted",
    "draft rejected",
    "stream complete before any draft",
    "stream complete during a draft step",
    "stream complete after the last draft",
    "middle stream skipped",
    "engine step shared",
    "damaged page sent again, request completed",
    "run without a fault",
};

}  // namespace

std::string_view SeenName(Seen seen) { return kNames[std::size_t(seen)]; }

World::World(std::uint64_t seed, std::function<void(std::string_view line)> log)
    : random_(seed), log_(std::move(log)) {}

void World::After(TimeNs delay, std::function<void()> what) {
  agenda_.push_back({now_ + delay, next_++, std::move(what)});
  std::push_heap(agenda_.begin(), agenda_.end());
}

bool World::Step(TimeNs until) {
  if (agenda_.empty() || agenda_.front().when > until) {
    now_ = until;
    return false;
  }
  std::pop_heap(agenda_.begin(), agenda_.end());
  const Event event = std::move(agenda_.back());
  agenda_.pop_back();
  now_ = event.when;
  event.what();
  return true;
}

std::int64_t World::Magnitude(std::int64_t first, std::int64_t last) {
  int doublings = 0;
  while ((first << doublings) < last) ++doublings;
  const std::int64_t from = first << random_.Below(std::uint64_t(doublings) + 1);
  return std::min(last, Between(from, 2 * from - 1));
}

void World::Log(std::string_view who, std::string_view what) const {
  if (!log_) return;
  char time[32];
  std::snprintf(time, sizeof time, "%14.6f ms  ", double(now_) / double(kMillisecondNs));
  log_(std::string(time).append(who).append(who.size() < 10 ? 10 - who.size() : 0, ' ').append("  ").append(what));
}

void World::Violate(std::string_view promise, std::string_view what) {
  std::string line = std::string(promise).append(": ").append(what);
  Log("VIOLATION", line);
  if (violations_.size() < kMaxViolations) violations_.push_back(std::move(line));
}

}  // namespace lynx
