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

#include "codec/bit_io.h"
#include "codec/lynx_reference.h"
#include "codec/page_parts.h"

namespace lynx {

inline constexpr std::size_t kLynxFixedBytes = 4;
inline constexpr int kLynxMaxOrder = 15;
// Per element, all streams together: a page that needs more travels exactly.
inline constexpr std::size_t kLynxMostBytes = 2;

constexpr std::size_t LynxHeadBytes(const PageDims& dims) {
  return kLynxFixedBytes + 2 * std::size_t(dims.address.head_count);
}
// Class and offset codes, and what the fixed fields say of them. A channel's step is its head's plus two eighths of an
// octave times an offset, which is told as the difference from the channel before it.
constexpr void LynxPutClasses(const std::int32_t* classes, const std::int16_t* steps, int channels, int head_dim,
                              std::byte* fixed, BitWriter* bits) {
  const int least = *std::min_element(classes, classes + channels);
  const auto class_code = [&](int c) { return std::uint32_t(classes[c] - least); };
  const int order = BestGolombOrder(channels, kLynxMaxOrder, class_code);
  fixed[1] = std::byte(least);
  fixed[2] = std::byte(order);
  for (int c = 0; c < channels; ++c) bits->PutGolomb(class_code(c), order);

  const auto offset_code = [&](int c) {
    return ZigZag(c % head_dim == 0 ? 0 : (steps[c] - steps[c - 1]) / kLynxOffsetUnit);
  };
  bool offsets = false;
  for (int c = 0; c < channels; ++c) {
    if (c % head_dim == 0) StoreLittle(steps[c], fixed + kLynxFixedBytes + 2 * (c / head_dim));
    offsets = offsets || offset_code(c) != 0;
  }
  const int offset_order = offsets ? BestGolombOrder(channels, kLynxMaxOrder, offset_code) : 0;
  for (int c = 0; offsets && c < channels; ++c) bits->PutGolomb(offset_code(c), offset_order);
  fixed[3] = std::byte(offsets ? 1 + offset_order : 0);
  bits->Finish();
}
// The inverse, in two parts: classes, then steps, whose order must be one. False: a code is impossible, or bits ran
// out.
template <typename Class>
constexpr bool LynxGetClasses(const std::byte* fixed, int channels, BitReader* bits, Class* classes) {
  const int least = int(fixed[1]), order = int(fixed[2]) & 15;
  for (int c = 0; c < channels; ++c) {
    const std::uint32_t above = bits->GetGolomb(order);
    if (!bits->ok() || above >= std::uint32_t(kLynxClasses) || least + int(above) >= kLynxClasses) return false;
    classes[c] = Class(least + int(above));
  }
  return true;
}
constexpr bool LynxGetSteps(const std::byte* fixed, int channels, int head_dim, BitReader* bits, std::int16_t* steps) {
  const int order = int(fixed[3]) - 1;  // -1: no offsets
  std::int64_t step = 0;
  for (int c = 0; c < channels; ++c) {
    if (c % head_dim == 0) step = LoadLittle<std::int16_t>(fixed + kLynxFixedBytes + 2 * (c / head_dim));
    if (order >= 0) step += std::int64_t{kLynxOffsetUnit} * UnZigZag(bits->GetGolomb(order));
    if (!bits->ok() || step < kLynxLeastStep || step > kLynxGreatestStep) return false;
    steps[c] = std::int16_t(step);
  }
  return true;
}
// The order of the codes of means goes to the fixed fields; the codes are the caller's to put.
constexpr int LynxPutMeanOrder(const std::int32_t* means, int channels, std::byte* fixed) {
  const int order = BestGolombOrder(channels, kLynxMaxOrder, [&](int c) { return ZigZag(means[c]); });
  fixed[2] |= std::byte(order << 4);
  return order;
}
// What an outermost symbol leaves open of its level.
constexpr void LynxPutOpen(std::int32_t level, int shift, BitWriter* bits) {
  const std::int32_t high = LynxHighOf(level, shift);
  bits->PutGolomb(std::uint32_t((high < 0 ? -high : high) - kLynxOutermost), kLynxOpenOrder);
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
