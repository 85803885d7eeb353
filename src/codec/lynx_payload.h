// The payloads of the `lynx` codec, shared by its two directions. S sinks, R recent tokens, T' = T - S, L lanes; stream
// 0:
//   1           R
//   1           least class
//   1           order of the Golomb codes of classes (low nibble) and of means (high nibble)
//   1           0: one step per head; else 1 + order of the Golomb codes of step offsets
//   2 heads     step of the head's first channel (i16)
//   S H E       elements of the sinks
//   ceil(R/2) H residuals of the recent tokens, nibble rows
//   bits        per channel: class - least class; per channel its step offset; padded to a byte
//   4 L         coder states
//   2 per word  coder words
//   the rest    open bits but for their first 2 L bytes, which the states carry: per channel its mean and what the
//               outermost symbols leave open; padded to a byte; per channel the low bits of its levels
// A later stream: rows of its bits of the tokens that are neither sinks nor recent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/page_parts.h"

namespace lynx {

inline constexpr std::size_t kLynxFixedBytes = 4;
inline constexpr int kLynxMaxOrder = 15;
// Per element, all streams together: a page that needs more travels exactly.
inline constexpr std::size_t kLynxMostBytes = 2;

constexpr std::size_t LynxHeadBytes(const PageDims& dims) {
  return kLynxFixedBytes + 2 * std::size_t(dims.address.head_count);
}
// Positions [token][channel], ascending, in the order of their channels; first[c] is where those of channel c begin.
inline void LynxSortByChannel(const std::uint32_t* positions, std::size_t count, int channels, std::uint32_t* sorted,
                              std::uint32_t* first) {
  for (int c = 0; c <= channels; ++c) first[c] = 0;
  for (std::size_t i = 0; i < count; ++i) ++first[positions[i] % std::uint32_t(channels)];
  std::uint32_t sum = 0;
  for (int c = 0; c <= channels; ++c) {
    const std::uint32_t of_channel = first[c];
    first[c] = sum;
    sum += of_channel;
  }
  for (std::size_t i = 0; i < count; ++i) sorted[first[positions[i] % std::uint32_t(channels)]++] = positions[i];
  for (int c = channels; c > 0; --c) first[c] = first[c - 1];
  first[0] = 0;
}

}  // namespace lynx
