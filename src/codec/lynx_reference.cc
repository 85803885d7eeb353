#include "codec/lynx_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lynx {
namespace {

constexpr int kOpenOrder = 1;  // of the Golomb code above |8|: the tail of a channel falls by about e per step or two

// Mean distance from the mean, over the tokens from the first to the last: unlike the deviation in squares it does not
// let one loud token make the step of all others.
float SpreadOf(const float* values, int tokens, std::size_t stride) {
  float sum = 0.0f;
  for (int token = 0; token < tokens; ++token) sum += values[std::size_t(token) * stride];
  const float mean = sum / float(tokens);
  float spread = 0.0f;
  for (int token = 0; token < tokens; ++token) spread += std::fabs(values[std::size_t(token) * stride] - mean);
  return spread / float(tokens);
}

}  // namespace

// Steps below 2^-16 of the greatest magnitude are finer than any element type here, and levels stay small.
int LynxLeastStepOf(const float* values, const HeadRows& head) {
  float greatest = 0.0f;
  for (int token = 0; token < head.tokens; ++token) {
    for (int c = 0; c < head.head_dim; ++c) {
      greatest = std::max(greatest, std::fabs(values[std::size_t(token) * head.stride + std::size_t(c)]));
    }
  }
  const int exponent = int(std::bit_cast<std::uint32_t>(greatest) >> 23) - 127;  // below -126 for denormals and 0
  return std::max(kLynxLeastStep, 8 * (exponent + 1 - 16));
}

int LynxStepOf(const float* values, const HeadRows& head, double bits) {
  constexpr int kMaxChannels = 16384;
  std::int16_t spreads[kMaxChannels];
  for (int c = 0; c < head.head_dim; ++c) {
    spreads[c] = std::int16_t(EighthOctavesOf(SpreadOf(values + c, head.tokens, head.stride)));
  }
  const LynxTables& tables = LynxTables::Get();
  const auto rate = [&](int step) {
    double sum = 0.0;
    for (int c = 0; c < head.head_dim; ++c) sum += tables.Bits(spreads[c] - step);
    return sum / head.head_dim;
  };
  // The rate falls as the step grows: the least step that stays within `bits`, or the one before it if that is nearer.
  const int least = LynxLeastStepOf(values, head);
  int low = least, high = kLynxGreatestStep;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (rate(middle) <= bits) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const bool finer = low > least && rate(low - 1) - bits < bits - rate(low);
  return finer ? low - 1 : low;
}

void LynxCells(const float* values, int tokens, int channels, const std::int16_t* steps, std::int32_t* cells) {
  for (int c = 0; c < channels; ++c) {
    const float per_cell = EighthOctave(32 - steps[c]);  // 16 / step
    for (int token = 0; token < tokens; ++token) {
      const std::size_t at = std::size_t(token) * std::size_t(channels) + std::size_t(c);
      cells[at] = std::int32_t(std::floor(values[at] * per_cell));
    }
  }
}

LynxChannel LynxChannelOf(const std::int32_t* cells, int tokens, std::size_t stride) {
  std::int64_t sum = 0;
  for (int token = 0; token < tokens; ++token) sum += cells[std::size_t(token) * stride];
  LynxChannel channel;
  // The centre of cell N is (2 N + 1) / 32 steps; the mean of those in quarters, rounded: floor((2 sum + 5 T) / (8 T)).
  const std::int64_t numerator = 2 * sum + 5 * tokens, denominator = 8 * tokens;
  const std::int64_t offset = std::int64_t{1} << 40;  // makes the division a floor
  channel.mean = std::int32_t((numerator + offset * denominator) / denominator - offset);
  std::int64_t magnitude = 0;
  for (int token = 0; token < tokens; ++token) {
    const std::int64_t centre =
        2 * std::int64_t{cells[std::size_t(token) * stride]} + 1 - 8 * std::int64_t{channel.mean};
    magnitude += centre < 0 ? -centre : centre;
  }
  channel.channel_class = LynxTables::Get().ClassOf(magnitude, tokens);
  return channel;
}

void LynxPutHigh(std::int32_t level, int shift, BitWriter* bits) {
  const std::int32_t high = (level + ((1 << shift) >> 1)) >> shift;
  const std::int32_t magnitude = high < 0 ? -high : high;
  if (magnitude >= kLynxOutermost) bits->PutGolomb(std::uint32_t(magnitude - kLynxOutermost), kOpenOrder);
}

std::int64_t LynxHighOf(std::uint8_t symbol, BitReader* bits) {
  const std::int64_t high = int(symbol) - kLynxOutermost;
  if (high == kLynxOutermost) return high + bits->GetGolomb(kOpenOrder);
  if (high == -kLynxOutermost) return high - bits->GetGolomb(kOpenOrder);
  return high;
}

}  // namespace lynx
