#include "codec/lynx_reference.h"

#include <algorithm>
#include <bit>

#include "base/float16.h"
#include "codec/lynx_kernels.h"

namespace lynx {

float LynxSpreadOf(const float* values, int tokens, std::size_t stride) {
  float sum = 0.0f;
  for (int token = 0; token < tokens; ++token) sum += values[std::size_t(token) * stride];
  const float mean = sum / float(tokens);
  float spread = 0.0f;
  for (int token = 0; token < tokens; ++token) spread += std::fabs(values[std::size_t(token) * stride] - mean);
  return spread / float(tokens);
}

// Steps below 2^-16 of the greatest magnitude are finer than any element type here, and levels stay small.
int LynxLeastStepOf(float magnitude) {
  const int exponent = int(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;  // below -126 for denormals and 0
  return std::max(kLynxLeastStep, 8 * (exponent + 1 - 16));
}

int LynxStepOf(std::span<const float> spreads, double bits, int least) {
  constexpr std::size_t kMaxChannels = 16384;
  std::int16_t eighths[kMaxChannels];
  for (std::size_t c = 0; c < spreads.size(); ++c) eighths[c] = std::int16_t(EighthOctavesOf(spreads[c]));
  const LynxTables& tables = LynxTables::Get();
  const auto rate = [&](int step) {
    double sum = 0.0;
    for (std::size_t c = 0; c < spreads.size(); ++c) sum += tables.Bits(eighths[c] - step);
    return sum / double(spreads.size());
  };
  // The rate falls as the step grows: the least step that stays within `bits`, or the one before it if that is nearer.
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

// The centre of cell N is (2 N + 1) / 32 steps; the mean of those in quarters, rounded: floor((2 sum + 5 T) / (8 T)).
std::int32_t LynxMeanOf(std::int64_t sum, int tokens) {
  const std::int64_t numerator = 2 * sum + 5 * tokens, denominator = 8 * tokens;
  const std::int64_t offset = std::int64_t{1} << 40;  // makes the division a floor
  return std::int32_t((numerator + offset * denominator) / denominator - offset);
}

std::int32_t LynxCellSum(const std::int32_t* cells, int tokens, std::size_t stride) {
  std::int32_t sum = 0;
  for (int token = 0; token < tokens; ++token) sum += cells[std::size_t(token) * stride];
  return sum;
}

std::int32_t LynxDistanceSum(const std::int32_t* cells, int tokens, std::size_t stride, std::int32_t mean) {
  std::int32_t sum = 0;
  for (int token = 0; token < tokens; ++token) sum += LynxDistanceOf(cells[std::size_t(token) * stride], mean);
  return sum;
}

namespace {

void Widen(ConstRows from, int tokens, int channels, float* rows) {
  for (int token = 0; token < tokens; ++token) {
    const std::byte* row = from.From(token).data;
    for (int c = 0; c < channels; ++c) *rows++ = LoadElement(row + c * ElementBytes(from.type), from.type);
  }
}

void Narrow(const float* rows, int tokens, int channels, Rows to) {
  for (int token = 0; token < tokens; ++token) {
    std::byte* row = to.From(token).data;
    for (int c = 0; c < channels; ++c) StoreElement(*rows++, ElementType::kBf16, row + 2 * c);
  }
}

template <bool inverse>
void Turn(const RopeTable& rope, int first_token, int tokens, std::size_t stride, float* rows) {
  for (int token = 0; token < tokens; ++token, rows += stride) {
    for (int pair = 0; pair < rope.pairs(); ++pair) rope.TurnPair(rows, first_token + token, pair, inverse);
  }
}

void Spreads(const float* rows, int tokens, int channels, float* spreads) {
  for (int c = 0; c < channels; ++c) spreads[c] = LynxSpreadOf(rows + c, tokens, std::size_t(channels));
}

void Magnitudes(const float* rows, int tokens, int channels, float* greatest) {
  for (int c = 0; c < channels; ++c) {
    greatest[c] = 0.0f;
    for (int token = 0; token < tokens; ++token) {
      greatest[c] = std::max(greatest[c], std::fabs(rows[std::size_t(token) * std::size_t(channels) + std::size_t(c)]));
    }
  }
}

void Cells(const float* rows, int tokens, int channels, const float* per_cell, std::int32_t* cells) {
  for (int token = 0; token < tokens; ++token) {
    for (int c = 0; c < channels; ++c) *cells++ = LynxCellOf(*rows++, per_cell[c]);
  }
}

void CellSums(const std::int32_t* cells, int tokens, int channels, std::int32_t* sums) {
  for (int c = 0; c < channels; ++c) sums[c] = LynxCellSum(cells + c, tokens, std::size_t(channels));
}

void CellDistances(const std::int32_t* cells, int tokens, int channels, const std::int32_t* means, std::int32_t* sums) {
  for (int c = 0; c < channels; ++c) sums[c] = LynxDistanceSum(cells + c, tokens, std::size_t(channels), means[c]);
}

void Split(std::int32_t* cells, int tokens, int channels, const LynxChannels& of, std::uint8_t* symbols,
           std::uint8_t* residuals) {
  for (int token = 0; token < tokens; ++token) {
    for (int c = 0; c < channels; ++c) LynxSplit(cells++, of.means[c], of.shifts[c], symbols++, residuals++);
  }
}

std::size_t FindOutermost(const std::uint8_t* symbols, std::size_t count, std::uint32_t* positions) {
  std::size_t found = 0;
  for (std::size_t at = 0; at < count; ++at) {
    if (LynxIsOutermost(symbols[at])) positions[found++] = std::uint32_t(at);
  }
  return found;
}

void Centres(const std::uint8_t* symbols, int tokens, int channels, const LynxChannels& of, std::int32_t* centres) {
  for (int token = 0; token < tokens; ++token) {
    for (int c = 0; c < channels; ++c) *centres++ = LynxCoarseCentre(*symbols++, of.shifts[c], of.means[c]);
  }
}

void Values(const std::int32_t* centres, const std::uint8_t* fine, std::int32_t half, int channels, const float* steps,
            float* row) {
  for (int c = 0; c < channels; ++c) row[c] = LynxValueOf(centres[c] + fine[c] + half, steps[c]);
}

}  // namespace

constinit const LynxKernels kReferenceLynxKernels = {RansEncode,    RansDecode, Widen,         Narrow,  Turn<false>,
                                                     Turn<true>,    Spreads,    Magnitudes,    Cells,   CellSums,
                                                     CellDistances, Split,      FindOutermost, Centres, Values};

}  // namespace lynx
