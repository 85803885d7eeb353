#include "codec/lynx_reference.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"
#include "codec/lynx_kernels.h"

namespace lynx {

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
