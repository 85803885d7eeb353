// Codec "auto": which one brings an answer's first tokens soonest.
#pragma once

#include <algorithm>
#include <string>

#include "speculate/draft_cost.h"

namespace lynx {

// A transfer alone on its link.
struct TransferCase {
  double elements = 0;  // of the prompt's cache
  double rate_bps = 0;  // of the link; 0: not known
  double step_s = 0;    // of the engine, for one token; 0: not known
  int codec_threads = 1;
};

// Candidates are those that complete a cache at least as well as int8 does. Elements per second on a core, bits per
// element and accepted drafts of 64 are as docs/codec.md measured them (with a profile). What counts is when the 32nd
// token is committed: once all is encoded and has arrived, for those that were not drafted meanwhile.
inline std::string ChooseCodec(const TransferCase& transfer) {
  struct Candidate {
    const char* spec;
    double elements_per_s, anchor_bits, all_bits, accepted;
    double Token32(const TransferCase& at) const {
      const double encode_s = at.elements / (elements_per_s * at.codec_threads);
      const double anchor_s = std::max(encode_s, at.elements * anchor_bits / at.rate_bps);
      const double complete_s = std::max(encode_s, at.elements * all_bits / at.rate_bps);
      const double drafts = std::min(64.0, (complete_s - anchor_s) / at.step_s);
      const double kept = std::min(31.0, ExpectedAccepted(accepted / (1 + accepted), drafts));
      return complete_s + (32 - kept) * at.step_s;
    }
  };
  constexpr Candidate kCandidates[] = {{"lynx", 0.4e9, 2.21, 6.09, 33.8},
                                       {"lynx:anchor_bits=1.35", 0.4e9, 1.33, 5.21, 13.7},
                                       {"nested", 2.1e9, 4.78, 8.65, 24.4}};
  if (transfer.rate_bps <= 0 || transfer.step_s <= 0) return kCandidates[0].spec;
  return std::ranges::min_element(kCandidates, {}, [&](const Candidate& c) { return c.Token32(transfer); })->spec;
}

}  // namespace lynx
