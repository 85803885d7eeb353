#include <cmath>
#include <cstddef>

#include "codec/elements.h"
#include "codec/kernels.h"

namespace lynx {
namespace {

// Codes of one token of one channel inside nibble rows.
void PutNibble(std::uint8_t* rows, int channels, int token, int channel, int code) {
  std::uint8_t& byte = rows[std::size_t(token / 2) * channels + channel];
  byte = token % 2 == 0 ? std::uint8_t(code & 15) : std::uint8_t(byte | (code & 15) << 4);
}

int GetNibble(const std::uint8_t* rows, int channels, int token, int channel) {
  const std::uint8_t byte = rows[std::size_t(token / 2) * channels + channel];
  return token % 2 == 0 ? byte & 15 : byte >> 4;
}

void ChannelRanges(const float* rows, int tokens, int channels, float* least, float* greatest) {
  for (int channel = 0; channel < channels; ++channel) {
    float low = rows[channel];
    float high = rows[channel];
    for (int token = 1; token < tokens; ++token) {
      const float value = rows[std::size_t(token) * channels + channel];
      low = std::fmin(low, value);
      high = std::fmax(high, value);
    }
    least[channel] = low + 0.0f;
    greatest[channel] = high + 0.0f;
  }
}

void TokenMagnitudes(const float* rows, int tokens, int channels, float* magnitudes) {
  for (int token = 0; token < tokens; ++token) {
    magnitudes[token] = 0.0f;
    for (int channel = 0; channel < channels; ++channel) {
      magnitudes[token] = std::fmax(magnitudes[token], std::fabs(rows[std::size_t(token) * channels + channel]));
    }
  }
}

void NestedQuantizeRows(const float* rows, int tokens, int channels, const float* low, const float* inverse_cell,
                        std::uint8_t* anchor, std::uint8_t* residual) {
  for (int channel = 0; channel < channels; ++channel) {
    for (int token = 0; token < tokens; ++token) {
      const float value = rows[std::size_t(token) * channels + channel];
      const int n = NestedQuantize(value, low[channel], inverse_cell[channel]);
      PutNibble(anchor, channels, token, channel, n >> 4);
      PutNibble(residual, channels, token, channel, n & 15);
    }
  }
}

void NestedReconstructRows(const std::uint8_t* anchor, const std::uint8_t* residual, int tokens, int channels,
                           const float* low, const float* cell, float* rows) {
  for (int channel = 0; channel < channels; ++channel) {
    for (int token = 0; token < tokens; ++token) {
      const int a = GetNibble(anchor, channels, token, channel);
      float& value = rows[std::size_t(token) * channels + channel];
      if (residual == nullptr) {
        value = NestedCoarse(a, low[channel], cell[channel]);
      } else {
        const int n = 16 * a + GetNibble(residual, channels, token, channel);
        value = NestedFine(n, low[channel], cell[channel]);
      }
    }
  }
}

void Int8QuantizeRows(const float* rows, int tokens, int channels, const float* inverse_steps, std::uint8_t* codes) {
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const std::size_t at = std::size_t(token) * channels + channel;
      codes[at] = std::uint8_t(std::lrint(rows[at] * inverse_steps[token]));
    }
  }
}

void Int8ReconstructRows(const std::uint8_t* codes, int tokens, int channels, const float* steps, float* rows) {
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const std::size_t at = std::size_t(token) * channels + channel;
      rows[at] = float(std::int8_t(codes[at])) * steps[token];
    }
  }
}

void Int4QuantizeRows(const float* rows, int tokens, int channels, const float* inverse_steps, std::uint8_t* codes) {
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const float value = rows[std::size_t(token) * channels + channel];
      PutNibble(codes, channels, token, channel, int(std::lrint(value * inverse_steps[token])));
    }
  }
}

void Int4ReconstructRows(const std::uint8_t* codes, int tokens, int channels, const float* steps, float* rows) {
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const int code = SignedNibble(GetNibble(codes, channels, token, channel));
      rows[std::size_t(token) * channels + channel] = float(code) * steps[token];
    }
  }
}

}  // namespace

const CodecKernels& ReferenceKernels() {
  static constexpr CodecKernels kKernels = {
      "reference",      ChannelRanges,       TokenMagnitudes,  NestedQuantizeRows,  NestedReconstructRows,
      Int8QuantizeRows, Int8ReconstructRows, Int4QuantizeRows, Int4ReconstructRows,
  };
  return kKernels;
}

}  // namespace lynx
