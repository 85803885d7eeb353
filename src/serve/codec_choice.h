// Codec "auto": which one brings anchors soonest over this link.
#pragma once

#include <algorithm>
#include <string>

namespace lynx {

// One core of an encoder and of a link decide how long an anchor takes, whichever is slower. Elements per second and
// bits per element as bench/codec_bench and docs/codec.md measured them; a link whose rate is not known (0) is taken as
// slow.
inline std::string ChooseCodec(double rate_bps, int codec_threads) {
  struct Candidate {
    const char* name;
    double elements_per_s, anchor_bits;
  };
  constexpr Candidate kLynx{"lynx", 0.4e9, 2.25}, kNested{"nested", 2.1e9, 4.8};
  if (rate_bps <= 0) return kLynx.name;
  const auto ns_per_element = [&](const Candidate& candidate) {
    return std::max(1e9 / (candidate.elements_per_s * codec_threads), 1e9 * candidate.anchor_bits / rate_bps);
  };
  return ns_per_element(kNested) < ns_per_element(kLynx) ? kNested.name : kLynx.name;
}

}  // namespace lynx
