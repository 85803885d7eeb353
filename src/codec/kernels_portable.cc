// Lane = channel: the inner loop runs over channels without dependence between them, so that a compiler may use any
// vector width and every width does the same scalar sequence.
#include <bit>
#include <cstddef>

#include "codec/elements.h"
#include "codec/kernels.h"

namespace lynx {
namespace {

void ChannelRanges(const float* rows, int tokens, int channels, float* __restrict least, float* __restrict greatest) {
  for (int c = 0; c < channels; ++c) least[c] = greatest[c] = rows[c];
  for (int token = 1; token < tokens; ++token) {
    const float* row = rows + std::size_t(token) * channels;
    for (int c = 0; c < channels; ++c) {
      least[c] = row[c] < least[c] ? row[c] : least[c];
      greatest[c] = row[c] > greatest[c] ? row[c] : greatest[c];
    }
  }
  for (int c = 0; c < channels; ++c) {
    least[c] += 0.0f;
    greatest[c] += 0.0f;
  }
}

void TokenMagnitudes(const float* rows, int tokens, int channels, float* magnitudes) {
  for (int token = 0; token < tokens; ++token) {
    const float* row = rows + std::size_t(token) * channels;
    std::int32_t greatest = 0;  // magnitude bits are ordered like magnitudes, and integers may be reduced in any order
    for (int c = 0; c < channels; ++c) {
      const auto bits = std::int32_t(std::bit_cast<std::uint32_t>(row[c]) & 0x7fffffffu);
      greatest = bits > greatest ? bits : greatest;
    }
    magnitudes[token] = std::bit_cast<float>(greatest);
  }
}

void NestedQuantizeRows(const float* rows, int tokens, int channels, const float* __restrict low,
                        const float* __restrict inverse_cell, std::uint8_t* __restrict anchor,
                        std::uint8_t* __restrict residual) {
  int token = 0;
  for (; token + 1 < tokens; token += 2, anchor += channels, residual += channels) {
    const float* even = rows + std::size_t(token) * channels;
    const float* odd = even + channels;
    for (int c = 0; c < channels; ++c) {
      const int n0 = NestedQuantize(even[c], low[c], inverse_cell[c]);
      const int n1 = NestedQuantize(odd[c], low[c], inverse_cell[c]);
      anchor[c] = std::uint8_t(n0 >> 4 | (n1 & 0xf0));
      residual[c] = std::uint8_t((n0 & 15) | (n1 & 15) << 4);
    }
  }
  if (token == tokens) return;
  const float* even = rows + std::size_t(token) * channels;
  for (int c = 0; c < channels; ++c) {
    const int n0 = NestedQuantize(even[c], low[c], inverse_cell[c]);
    anchor[c] = std::uint8_t(n0 >> 4);
    residual[c] = std::uint8_t(n0 & 15);
  }
}

void ReconstructCoarse(const std::uint8_t* anchor, int tokens, int channels, const float* __restrict low,
                       const float* __restrict cell, float* __restrict rows) {
  int token = 0;
  for (; token + 1 < tokens; token += 2, anchor += channels) {
    float* even = rows + std::size_t(token) * channels;
    float* odd = even + channels;
    for (int c = 0; c < channels; ++c) even[c] = NestedCoarse(anchor[c] & 15, low[c], cell[c]);
    for (int c = 0; c < channels; ++c) odd[c] = NestedCoarse(anchor[c] >> 4, low[c], cell[c]);
  }
  if (token == tokens) return;
  float* even = rows + std::size_t(token) * channels;
  for (int c = 0; c < channels; ++c) even[c] = NestedCoarse(anchor[c] & 15, low[c], cell[c]);
}

void NestedReconstructRows(const std::uint8_t* anchor, const std::uint8_t* residual, int tokens, int channels,
                           const float* __restrict low, const float* __restrict cell, float* __restrict rows) {
  if (residual == nullptr) return ReconstructCoarse(anchor, tokens, channels, low, cell, rows);
  int token = 0;
  for (; token + 1 < tokens; token += 2, anchor += channels, residual += channels) {
    float* even = rows + std::size_t(token) * channels;
    float* odd = even + channels;
    for (int c = 0; c < channels; ++c)
      even[c] = NestedFine((anchor[c] & 15) << 4 | (residual[c] & 15), low[c], cell[c]);
    for (int c = 0; c < channels; ++c) odd[c] = NestedFine((anchor[c] & 0xf0) | residual[c] >> 4, low[c], cell[c]);
  }
  if (token == tokens) return;
  float* even = rows + std::size_t(token) * channels;
  for (int c = 0; c < channels; ++c) even[c] = NestedFine((anchor[c] & 15) << 4 | (residual[c] & 15), low[c], cell[c]);
}

void Int8QuantizeRows(const float* rows, int tokens, int channels, const float* inverse_steps,
                      std::uint8_t* __restrict codes) {
  for (int token = 0; token < tokens; ++token, rows += channels, codes += channels) {
    const float inverse = inverse_steps[token];
    for (int c = 0; c < channels; ++c) codes[c] = std::uint8_t(NearestInteger(rows[c] * inverse));
  }
}

void Int8ReconstructRows(const std::uint8_t* codes, int tokens, int channels, const float* steps,
                         float* __restrict rows) {
  for (int token = 0; token < tokens; ++token, rows += channels, codes += channels) {
    const float step = steps[token];
    for (int c = 0; c < channels; ++c) rows[c] = float(std::int8_t(codes[c])) * step;
  }
}

void Int4QuantizeRows(const float* rows, int tokens, int channels, const float* inverse_steps,
                      std::uint8_t* __restrict codes) {
  int token = 0;
  for (; token + 1 < tokens; token += 2, codes += channels) {
    const float* even = rows + std::size_t(token) * channels;
    const float* odd = even + channels;
    const float inverse0 = inverse_steps[token];
    const float inverse1 = inverse_steps[token + 1];
    for (int c = 0; c < channels; ++c) {
      const int low = NearestInteger(even[c] * inverse0) & 15;
      codes[c] = std::uint8_t(low | NearestInteger(odd[c] * inverse1) << 4);
    }
  }
  if (token == tokens) return;
  const float* even = rows + std::size_t(token) * channels;
  const float inverse = inverse_steps[token];
  for (int c = 0; c < channels; ++c) codes[c] = std::uint8_t(NearestInteger(even[c] * inverse) & 15);
}

void Int4ReconstructRows(const std::uint8_t* codes, int tokens, int channels, const float* steps,
                         float* __restrict rows) {
  for (int token = 0; token < tokens; ++token, rows += channels) {
    const float step = steps[token];
    if (token % 2 == 0) {
      for (int c = 0; c < channels; ++c) rows[c] = float(SignedNibble(codes[c] & 15)) * step;
    } else {
      for (int c = 0; c < channels; ++c) rows[c] = float(SignedNibble(codes[c] >> 4)) * step;
      codes += channels;
    }
  }
}

}  // namespace

const CodecKernels& PortableKernels() {
  static constexpr CodecKernels kKernels = {
      "portable",       ChannelRanges,       TokenMagnitudes,  NestedQuantizeRows,  NestedReconstructRows,
      Int8QuantizeRows, Int8ReconstructRows, Int4QuantizeRows, Int4ReconstructRows,
  };
  return kKernels;
}

}  // namespace lynx
