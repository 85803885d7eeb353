// The inner loops of the `lynx` codec as a table of slots, part of CodecKernels. The reference is the definition
// (docs/codec.md §3.5); every other table gives the same bytes. Rows are dense [token][channel]; tokens <= 256; outputs
// never overlap inputs unless a slot works in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/kernels.h"
#include "codec/lynx_tables.h"
#include "codec/page_codec.h"
#include "codec/rans.h"
#include "codec/rope_table.h"

namespace lynx {

// What a channel's level and residual mean: level = high * 2^shift + low bits - half of them.
struct LynxChannels {
  const std::int32_t* means;   // on the grid of step / 4
  const std::int32_t* shifts;  // 0 … 19
};

struct LynxKernels {
  decltype(&RansEncode) rans_encode;
  decltype(&RansDecode) rans_decode;

  // Rows of BF16 or F32 to dense rows of values; finite values to rows of BF16, which may go past the caches as those
  // of nested_reconstruct.
  void (*widen)(ConstRows from, int tokens, int channels, float* rows);
  void (*narrow)(const float* rows, int tokens, int channels, Rows to);

  // K rows of tokens first_token … of a page, one head, in place.
  void (*rotate)(const RopeTable& rope, int first_token, int tokens, std::size_t stride, float* rows);
  void (*unrotate)(const RopeTable& rope, int first_token, int tokens, std::size_t stride, float* rows);

  // Per channel: the mean distance from the mean (sums from the first token to the last), and the greatest magnitude.
  void (*spreads)(const float* rows, int tokens, int channels, float* spreads);
  void (*magnitudes)(const float* rows, int tokens, int channels, float* greatest);

  // floor(x * per_cell), |result| <= 2^20 + 1.
  void (*cells)(const float* rows, int tokens, int channels, const float* per_cell, std::int32_t* cells);
  // Per channel: the sum of cells, and of |2 cell + 1 - 8 mean|.
  void (*cell_sums)(const std::int32_t* cells, int tokens, int channels, std::int32_t* sums);
  void (*cell_distances)(const std::int32_t* cells, int tokens, int channels, const std::int32_t* means,
                         std::int32_t* sums);
  // Cells become n, in place; symbols of their levels and the four residual bits, a byte each.
  void (*split)(std::int32_t* cells, int tokens, int channels, const LynxChannels& of, std::uint8_t* symbols,
                std::uint8_t* residuals);
  // Where the two outermost symbols are, ascending; returns how many.
  std::size_t (*find_outermost)(const std::uint8_t* symbols, std::size_t count, std::uint32_t* positions);

  // 32 * (symbol - 8) * 2^shift - 16 * 2^shift (0 without a shift) + 8 mean - 16: the anchor's centre in 32nds of a
  // step but for 2^(4 - known residual bits), open bits and residuals.
  void (*centres)(const std::uint8_t* symbols, int tokens, int channels, const LynxChannels& of, std::int32_t* centres);
  // A row of values: float(centre + fine + half) * steps.
  void (*values)(const std::int32_t* centres, const std::uint8_t* fine, std::int32_t half, int channels,
                 const float* steps, float* row);
};

// Turns, by `rotate` or `unrotate`, all heads of rows of a page's tokens first … end - 1; nothing without a table.
inline void TurnHeads(decltype(LynxKernels::rotate) turn, const RopeTable* rope, const PageDims& dims, int first,
                      int end, float* rows) {
  for (int c = 0; c < dims.channels && rope != nullptr; c += dims.head_dim()) {
    turn(*rope, first, end - first, std::size_t(dims.channels), rows + c);
  }
}

// Element by element, in the order of the document.
extern const LynxKernels kReferenceLynxKernels;

}  // namespace lynx
