// What codecs share: rows of packed bits, and which tokens of a page travel how where there are sinks and a recent
// window.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "base/float16.h"
#include "codec/page_codec.h"

namespace lynx {

inline constexpr int kSinks = 4;  // positions of the sequence that travel exactly

// Rows of `width` bits: byte [i][channel] holds 8 / width tokens, the first in the low bits.
constexpr std::size_t RowBytes(int tokens, int channels, int width) {
  const int per_byte = 8 / width;
  return std::size_t((tokens + per_byte - 1) / per_byte) * std::size_t(channels);
}
// One code of `width` <= 8 bits in rows that begin as zeros.
constexpr void PutRow(std::byte* rows, int channels, int width, int token, int channel, int bits) {
  const int per_byte = 8 / width;
  rows[std::size_t(token / per_byte) * std::size_t(channels) + std::size_t(channel)] |=
      std::byte(bits << (token % per_byte * width));
}
constexpr int GetRow(const std::byte* rows, int channels, int width, int token, int channel) {
  const int per_byte = 8 / width;
  const auto byte = std::uint8_t(rows[std::size_t(token / per_byte) * std::size_t(channels) + std::size_t(channel)]);
  return byte >> (token % per_byte * width) & ((1 << width) - 1);
}
// All rows of bits `drop` … drop + width - 1 of a byte per element, [token][channel].
inline void PackRows(const std::uint8_t* elements, int tokens, int channels, int width, int drop, std::byte* rows) {
  const int per_byte = 8 / width, mask = (1 << width) - 1;
  auto* to = reinterpret_cast<std::uint8_t*>(rows);
  for (int first = 0; first < tokens; first += per_byte, to += channels) {
    for (int i = 0; i < per_byte && first + i < tokens; ++i) {
      const std::uint8_t* from = elements + std::size_t(first + i) * std::size_t(channels);
      for (int c = 0; c < channels; ++c) {
        const auto bits = std::uint8_t((from[c] >> drop & mask) << (i * width));
        to[c] = i == 0 ? bits : std::uint8_t(to[c] | bits);
      }
    }
  }
}
// Adds a token's bits, `up` bits higher, to a byte per channel: eight bytes at a time, as there are no shifts of bytes.
inline void AddRow(const std::byte* rows, int channels, int width, int token, int up, std::uint8_t* to) {
  const int per_byte = 8 / width, mask = (1 << width) - 1, down = token % per_byte * width;
  const std::byte* from = rows + std::size_t(token / per_byte) * std::size_t(channels);
  const std::uint64_t masks = 0x0101010101010101u * std::uint64_t(mask);
  int c = 0;
  for (; c + 8 <= channels; c += 8) {
    std::uint64_t codes, sums;
    std::memcpy(&codes, from + c, sizeof codes);
    std::memcpy(&sums, to + c, sizeof sums);
    sums += (codes >> down & masks) << up;
    std::memcpy(to + c, &sums, sizeof sums);
  }
  for (; c < channels; ++c) to[c] = std::uint8_t(to[c] + ((std::uint8_t(from[c]) >> down & mask) << up));
}

// Code rows: codes of `width` < 8 bits are cut, from their high bits, into pieces of 4, 2 and 1 bits, those that add up
// to the width; the rows of each piece follow one another.
inline constexpr int kGreatestPiece = 4;
constexpr std::size_t CodeRowBytes(int tokens, int channels, int width) {
  std::size_t bytes = 0;
  for (int piece = kGreatestPiece; piece > 0; piece /= 2) {
    bytes += (width & piece) != 0 ? RowBytes(tokens, channels, piece) : 0;
  }
  return bytes;
}
// The code of one token of one channel inside code rows; PutCode: inside code rows that begin as zeros.
constexpr int GetCode(const std::byte* rows, int tokens, int channels, int width, int token, int channel) {
  int code = 0;
  for (int piece = kGreatestPiece; piece > 0; piece /= 2) {
    if ((width & piece) == 0) continue;
    code = code << piece | GetRow(rows, channels, piece, token, channel);
    rows += RowBytes(tokens, channels, piece);
  }
  return code;
}
constexpr void PutCode(std::byte* rows, int tokens, int channels, int width, int token, int channel, int code) {
  int left = width;
  for (int piece = kGreatestPiece; piece > 0; piece /= 2) {
    if ((width & piece) == 0) continue;
    left -= piece;
    PutRow(rows, channels, piece, token, channel, code >> left & ((1 << piece) - 1));
    rows += RowBytes(tokens, channels, piece);
  }
}

// Which tokens of a page travel how: sinks first, then coded ones, the last of which may be recent.
struct Parts {
  int sinks = 0;
  int coded = 0;
  int recent = 0;
  constexpr int plain() const { return coded - recent; }  // coded tokens whose residual comes in later streams
};

// Without the recent ones.
constexpr Parts PartsOf(const PageDims& dims) {
  const int sinks = std::clamp(kSinks - dims.address.first_token, 0, dims.tokens);
  return {sinks, dims.tokens - sinks, 0};
}

constexpr std::size_t SinkBytes(const PageDims& dims, int sinks) {
  return std::size_t(sinks) * std::size_t(dims.channels) * std::size_t(ElementBytes(dims.element_type));
}
// Sinks travel as they are, so decoders look at them: finite, at most kMaxMagnitude.
constexpr bool SinksWithin(const std::byte* from, std::size_t count, ElementType type) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = type == ElementType::kF32    ? std::bit_cast<float>(LoadLittle<std::uint32_t>(from + 4 * i))
                        : type == ElementType::kBf16 ? Bf16ToFloat(LoadLittle<std::uint16_t>(from + 2 * i))
                                                     : F16ToFloat(LoadLittle<std::uint16_t>(from + 2 * i));
    if (!(value >= -kMaxMagnitude && value <= kMaxMagnitude)) return false;
  }
  return true;
}

// How many of the coded tokens belong to the last `recent` ones of the prompt, as an encoder is told.
constexpr int RecentOf(const PageDims& dims, int coded, int recent) {
  return dims.tokens_after < 0 ? 0 : std::clamp(recent - dims.tokens_after, 0, coded);
}

}  // namespace lynx
