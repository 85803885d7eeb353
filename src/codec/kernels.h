// The inner loops of the codecs as a table of slots. The reference kernels are the definition (docs/codec.md); every
// other table gives the same bytes. All rows are dense [token][channel]; outputs never overlap inputs.
#pragma once

#include <cstdint>

namespace lynx {

struct CodecKernels {
  const char* name;

  // Per channel: the least and the greatest of `tokens` >= 1 rows; -0 counts as +0.
  void (*channel_ranges)(const float* rows, int tokens, int channels, float* least, float* greatest);
  // Per token: the greatest magnitude of its row.
  void (*token_magnitudes)(const float* rows, int tokens, int channels, float* magnitudes);

  // nested, one chunk: low[channel] and 1 / cell[channel]; writes nibble rows of both streams.
  void (*nested_quantize)(const float* rows, int tokens, int channels, const float* low, const float* inverse_cell,
                          std::uint8_t* anchor, std::uint8_t* residual);
  // residual is null when only the anchor is at hand.
  void (*nested_reconstruct)(const std::uint8_t* anchor, const std::uint8_t* residual, int tokens, int channels,
                             const float* low, const float* cell, float* rows);

  // int8, int4: steps per token (of these rows), 1 / step or 0.
  void (*int8_quantize)(const float* rows, int tokens, int channels, const float* inverse_steps, std::uint8_t* codes);
  void (*int8_reconstruct)(const std::uint8_t* codes, int tokens, int channels, const float* steps, float* rows);
  void (*int4_quantize)(const float* rows, int tokens, int channels, const float* inverse_steps, std::uint8_t* codes);
  void (*int4_reconstruct)(const std::uint8_t* codes, int tokens, int channels, const float* steps, float* rows);
};

// Channel by channel, in the order of the document.
const CodecKernels& ReferenceKernels();
// Lane = channel, plain C++ that compilers vectorise.
const CodecKernels& PortableKernels();

}  // namespace lynx
