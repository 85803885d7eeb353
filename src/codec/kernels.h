// The inner loops of the codecs as a table of slots. The reference kernels are the definition (docs/codec.md); every
// other table gives the same bytes. Outputs never overlap inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lynx/page.h"

namespace lynx {

// Rows of values, the channels of a token side by side, of type kF32 (aligned) or kBf16.
template <typename Byte>
struct BasicRows {
  Byte* data = nullptr;
  std::ptrdiff_t stride = 0;  // bytes from one token to the next
  ElementType type = ElementType::kF32;
  BasicRows From(int token) const { return {data + token * stride, stride, type}; }
  operator BasicRows<const std::byte>() const { return {data, stride, type}; }  // NOLINT: a view
};
using ConstRows = BasicRows<const std::byte>;
using Rows = BasicRows<std::byte>;
// Dense F32 rows, and their values.
inline ConstRows RowsOf(const float* values, int channels) {
  return {reinterpret_cast<const std::byte*>(values), std::ptrdiff_t(channels) * 4, ElementType::kF32};
}
inline Rows RowsOf(float* values, int channels) {
  return {reinterpret_cast<std::byte*>(values), std::ptrdiff_t(channels) * 4, ElementType::kF32};
}
inline const float* ValuesOf(ConstRows rows) { return reinterpret_cast<const float*>(rows.data); }
inline float* ValuesOf(Rows rows) { return reinterpret_cast<float*>(rows.data); }

struct LynxKernels;

struct CodecKernels {
  const char* name;
  const LynxKernels* lynx;  // lynx_kernels.h

  // Per channel: the least and the greatest of `tokens` >= 1 rows; -0 counts as +0. Of a channel of BF16 rows that
  // holds a NaN at least one is NaN; F32 rows hold none.
  void (*channel_ranges)(ConstRows rows, int tokens, int channels, float* least, float* greatest);
  // Per token: the greatest magnitude of its row; NaN when BF16 rows hold one.
  void (*token_magnitudes)(ConstRows rows, int tokens, int channels, float* magnitudes);

  // nested, per channel. The range of a page -> its scalars (FP16) at `halfs`: base of all channels, then unit.
  void (*nested_page)(const float* least, const float* greatest, int channels, std::byte* halfs);
  // FP16 numbers, all finite -> floats; false: one is not finite.
  bool (*floats_of_halfs)(const std::byte* halfs, int count, float* floats);
  // Of a chunk, for the encoder: its range -> offset and width, and the centre of cell 0 and 1 / cell (or 0).
  void (*nested_scales)(const float* base, const float* unit, const float* least, const float* greatest, int channels,
                        std::byte* offset, std::byte* width, float* first, float* inverse_cell);
  // For the decoder: offset and width -> low and cell.
  void (*nested_grid)(const float* base, const float* unit, const std::byte* offset, const std::byte* width,
                      int channels, float* low, float* cell);
  // Writes the code rows (page_parts.h) of anchor and residual, anchor_bits and 8 - anchor_bits wide.
  void (*nested_quantize)(ConstRows rows, int tokens, int channels, int anchor_bits, const float* first,
                          const float* inverse_cell, std::byte* anchor, std::byte* residual);
  // residual is null when only the anchor is at hand. BF16 rows may go past the caches: PublishRows() before other
  // threads read them.
  void (*nested_reconstruct)(const std::byte* anchor, const std::byte* residual, int tokens, int channels,
                             int anchor_bits, const float* low, const float* cell, Rows rows);

  // int8, int4 (bits): steps per token (of these rows), 1 / step or 0. Codes: rows of bytes, or nibble rows.
  void (*integer_quantize)(ConstRows rows, int tokens, int channels, int bits, const float* inverse_steps,
                           std::byte* codes);
  void (*integer_reconstruct)(const std::byte* codes, int tokens, int channels, int bits, const float* steps,
                              Rows rows);
};

// Makes visible to other threads, in the usual order, what kernels of this thread wrote past the caches.
void PublishRows();

// Element by element, in the order of the document.
const CodecKernels& ReferenceKernels();
// Vectors of channels, for the best instruction set that this machine has.
const CodecKernels& SimdKernels();
// For every instruction set that was compiled and that this machine has, the best first. For tests: not while another
// thread makes codecs.
std::span<const CodecKernels* const> AllSimdKernels();

}  // namespace lynx
