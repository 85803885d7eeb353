#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/float16.h"
#include "codec/elements.h"
#include "codec/kernels.h"
#include "codec/lynx_kernels.h"
#include "codec/page_parts.h"

namespace lynx {
namespace {

template <typename Byte>
Byte* At(const BasicRows<Byte>& rows, int token, int channel) {
  return rows.data + token * rows.stride + channel * ElementBytes(rows.type);
}
float ValueAt(const ConstRows& rows, int token, int channel) {
  return LoadElement(At(rows, token, channel), rows.type);
}
void SetValue(float value, const Rows& rows, int token, int channel) {
  StoreElement(value, rows.type, At(rows, token, channel));
}

void ChannelRanges(ConstRows rows, int tokens, int channels, float* least, float* greatest) {
  for (int channel = 0; channel < channels; ++channel) {
    float low = ValueAt(rows, 0, channel);
    float high = low;
    for (int token = 1; token < tokens; ++token) {
      const float value = ValueAt(rows, token, channel);
      if (value < low || std::isnan(value)) low = value;
      if (value > high) high = value;
    }
    least[channel] = low + 0.0f;
    greatest[channel] = high + 0.0f;
  }
}

void TokenMagnitudes(ConstRows rows, int tokens, int channels, float* magnitudes) {
  for (int token = 0; token < tokens; ++token) {
    magnitudes[token] = 0.0f;
    for (int channel = 0; channel < channels; ++channel) {
      const float magnitude = std::fabs(ValueAt(rows, token, channel));
      if (magnitude > magnitudes[token] || std::isnan(magnitude)) magnitudes[token] = magnitude;
    }
  }
}

void NestedPage(const float* least, const float* greatest, int channels, std::byte* halfs) {
  for (int c = 0; c < channels; ++c) {
    const NestedPageScale scale = NestedPageScaleOf(least[c], greatest[c]);
    StoreLittle(scale.base, halfs + 2 * c);
    StoreLittle(scale.unit, halfs + 2 * (channels + c));
  }
}

bool FloatsOfHalfs(const std::byte* halfs, int count, float* floats) {
  for (int i = 0; i < count; ++i) floats[i] = LoadF16(halfs + 2 * i);
  return AllF16Finite(halfs, count);
}

void NestedScales(const float* base, const float* unit, const float* least, const float* greatest, int channels,
                  std::byte* offset, std::byte* width, float* first, float* inverse_cell) {
  for (int c = 0; c < channels; ++c) {
    const NestedEncoderGrid grid = NestedEncoderGridOf(base[c], unit[c], least[c], greatest[c]);
    offset[c] = std::byte(grid.scale.offset);
    width[c] = std::byte(grid.scale.width);
    first[c] = grid.first;
    inverse_cell[c] = grid.inverse_cell;
  }
}

void NestedGrid(const float* base, const float* unit, const std::byte* offset, const std::byte* width, int channels,
                float* low, float* cell) {
  for (int c = 0; c < channels; ++c) {
    low[c] = NestedLow(base[c], unit[c], std::uint8_t(offset[c]));
    cell[c] = NestedCell(unit[c], std::uint8_t(width[c]));
  }
}

void NestedQuantizeRows(ConstRows rows, int tokens, int channels, int anchor_bits, const float* first,
                        const float* inverse_cell, std::byte* anchor, std::byte* residual) {
  const int rest = kNestedBits - anchor_bits;
  std::memset(anchor, 0, CodeRowBytes(tokens, channels, anchor_bits));
  std::memset(residual, 0, CodeRowBytes(tokens, channels, rest));
  for (int channel = 0; channel < channels; ++channel) {
    for (int token = 0; token < tokens; ++token) {
      const int n = NestedQuantize(ValueAt(rows, token, channel), first[channel], inverse_cell[channel]);
      PutCode(anchor, tokens, channels, anchor_bits, token, channel, n >> rest);
      PutCode(residual, tokens, channels, rest, token, channel, n & ((1 << rest) - 1));
    }
  }
}

void NestedReconstructRows(const std::byte* anchor, const std::byte* residual, int tokens, int channels,
                           int anchor_bits, const float* low, const float* cell, Rows rows) {
  const int rest = kNestedBits - anchor_bits;
  for (int channel = 0; channel < channels; ++channel) {
    for (int token = 0; token < tokens; ++token) {
      int n = GetCode(anchor, tokens, channels, anchor_bits, token, channel) << rest;
      if (residual != nullptr) n |= GetCode(residual, tokens, channels, rest, token, channel);
      const float first = NestedFirst(low[channel], NestedHalf(residual != nullptr ? 0 : rest), cell[channel]);
      SetValue(NestedCentre(n, first, cell[channel]), rows, token, channel);
    }
  }
}

void IntegerQuantizeRows(ConstRows rows, int tokens, int channels, int bits, const float* inverse_steps,
                         std::byte* codes) {
  std::memset(codes, 0, RowBytes(tokens, channels, bits));
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const auto code = int(std::lrint(ValueAt(rows, token, channel) * inverse_steps[token]));
      PutRow(codes, channels, bits, token, channel, code & ((1 << bits) - 1));
    }
  }
}

void IntegerReconstructRows(const std::byte* codes, int tokens, int channels, int bits, const float* steps, Rows rows) {
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const int code = GetRow(codes, channels, bits, token, channel);
      SetValue(float(bits == 8 ? std::int8_t(code) : SignedNibble(code)) * steps[token], rows, token, channel);
    }
  }
}

}  // namespace

const CodecKernels& ReferenceKernels() {
  static constexpr CodecKernels kKernels = {
      "reference",        &kReferenceLynxKernels, ChannelRanges,       TokenMagnitudes,
      NestedPage,         FloatsOfHalfs,          NestedScales,        NestedGrid,
      NestedQuantizeRows, NestedReconstructRows,  IntegerQuantizeRows, IntegerReconstructRows,
  };
  return kKernels;
}

}  // namespace lynx
