// Bugs for tests of the tests: scripts/mutants builds the modules that use this with -DLYNX_BUG=n and expects the tests to
// fail. 0 in every build that is used.
#pragma once

namespace lynx {

enum class SeededBug {
  kNone = 0,
  kNoChecksum = 1,    // damaged payloads are believed
  kFifoOrder = 2,     // streams have no priority
  kEpochIgnored = 3,  // frames of a peer's former life count
  kAppliedEarly = 4,  // a stream counts as decoded when half of its pages are
  kPageLeaked = 5,    // acknowledged pages are kept
};

#ifdef LYNX_BUG
inline constexpr SeededBug kSeededBug = SeededBug(LYNX_BUG);
#else
inline constexpr SeededBug kSeededBug = SeededBug::kNone;
#endif

}  // namespace lynx
