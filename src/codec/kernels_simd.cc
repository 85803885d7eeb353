// Lane = channel, in vectors of any width: every lane does the scalar sequence of elements.h. A row of codes becomes a
// row of bytes and then values, block by block of channels, so that what lies between stays in the first-level cache.
#include "codec/kernels.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "base/float16.h"
#include "codec/elements.h"
#include "codec/page_parts.h"

HWY_BEFORE_NAMESPACE();
namespace lynx {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using Integers = hn::RebindToSigned<Floats>;
using Halfs = hn::Rebind<std::uint16_t, Floats>;  // as many lanes
using Codes = hn::Rebind<std::uint8_t, Floats>;
using Bytes = hn::ScalableTag<std::uint8_t>;
using Keys = hn::ScalableTag<std::int16_t>;

constexpr int kBlock = 1024;  // channels

std::uint8_t* AsBytes(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }
const std::uint8_t* AsBytes(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }

// Values of one row in memory; T is float or std::uint16_t (BF16).
HWY_INLINE hn::Vec<Floats> LoadValues(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE hn::Vec<Floats> LoadValues(const std::uint16_t* from) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halfs(), from))));
}
HWY_INLINE float LoadValue(const float* from) { return *from; }
HWY_INLINE float LoadValue(const std::uint16_t* from) { return Bf16ToFloat(*from); }
HWY_INLINE void StoreValues(hn::Vec<Floats> values, float* to) { hn::StoreU(values, Floats(), to); }
HWY_INLINE void StoreValues(hn::Vec<Floats> values, std::uint16_t* to) {
  const Words words;
  const auto bits = hn::BitCast(words, values);  // finite, so that rounding needs no look at NaN
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, hn::Set(words, 0x7fff))));
  hn::StoreU(hn::DemoteTo(Halfs(), hn::BitCast(Integers(), rounded)), Halfs(), to);
}
HWY_INLINE void StoreValue(float value, float* to) { *to = value; }
HWY_INLINE void StoreValue(float value, std::uint16_t* to) { *to = FloatToBf16(value); }

template <typename T, typename Byte>
auto* RowAs(const BasicRows<Byte>& rows, int token, int channel) {
  if constexpr (std::is_const_v<Byte>) {
    return reinterpret_cast<const T*>(rows.data + token * rows.stride) + channel;
  } else {
    return reinterpret_cast<T*>(rows.data + token * rows.stride) + channel;
  }
}

// ---- ranges ----

void FloatRanges(ConstRows rows, int tokens, int channels, float* least, float* greatest) {
  const Floats floats;
  const int lanes = int(hn::Lanes(floats));
  std::copy_n(RowAs<float>(rows, 0, 0), channels, least);
  std::copy_n(RowAs<float>(rows, 0, 0), channels, greatest);
  for (int token = 1; token < tokens; ++token) {
    const float* row = RowAs<float>(rows, token, 0);
    int c = 0;
    for (; c + lanes <= channels; c += lanes) {
      const auto values = hn::LoadU(floats, row + c);
      hn::StoreU(hn::Min(values, hn::LoadU(floats, least + c)), floats, least + c);
      hn::StoreU(hn::Max(values, hn::LoadU(floats, greatest + c)), floats, greatest + c);
    }
    for (; c < channels; ++c) {
      least[c] = row[c] < least[c] ? row[c] : least[c];
      greatest[c] = row[c] > greatest[c] ? row[c] : greatest[c];
    }
  }
  for (int c = 0; c < channels; ++c) {
    least[c] += 0.0f;
    greatest[c] += 0.0f;
  }
}

// BF16 numbers as integers in the order of their values, NaN outermost; the same map leads back.
HWY_INLINE hn::Vec<Keys> KeysOf(hn::Vec<Keys> bits) {
  return hn::Xor(bits, hn::And(hn::ShiftRight<15>(bits), hn::Set(Keys(), 0x7fff)));
}
HWY_INLINE std::int16_t KeyOf(std::int16_t bits) { return std::int16_t(bits ^ ((bits >> 15) & 0x7fff)); }
HWY_INLINE float OfKey(std::int16_t key) { return Bf16ToFloat(std::uint16_t(KeyOf(key))) + 0.0f; }

// The extremes of up to four rows join those of the rows before.
void JoinKeys(const std::int16_t* const (&row)[4], int channels, std::int16_t* least, std::int16_t* greatest) {
  const Keys keys;
  const int lanes = int(hn::Lanes(keys));
  int c = 0;
  for (; c + lanes <= channels; c += lanes) {
    const auto a = KeysOf(hn::LoadU(keys, row[0] + c)), b = KeysOf(hn::LoadU(keys, row[1] + c));
    const auto d = KeysOf(hn::LoadU(keys, row[2] + c)), e = KeysOf(hn::LoadU(keys, row[3] + c));
    const auto low = hn::Min(hn::Min(a, b), hn::Min(d, e)), high = hn::Max(hn::Max(a, b), hn::Max(d, e));
    hn::StoreU(hn::Min(low, hn::LoadU(keys, least + c)), keys, least + c);
    hn::StoreU(hn::Max(high, hn::LoadU(keys, greatest + c)), keys, greatest + c);
  }
  for (; c < channels; ++c) {
    for (const std::int16_t* each : row) {
      least[c] = std::min(least[c], KeyOf(each[c]));
      greatest[c] = std::max(greatest[c], KeyOf(each[c]));
    }
  }
}

void Bf16Ranges(ConstRows rows, int tokens, int channels, float* least, float* greatest) {
  for (int first = 0; first < channels; first += kBlock) {
    const int count = std::min(kBlock, channels - first);
    std::int16_t low[kBlock], high[kBlock];
    std::fill_n(low, count, std::int16_t{INT16_MAX});
    std::fill_n(high, count, std::int16_t{INT16_MIN});
    for (int token = 0; token < tokens; token += 4) {
      const std::int16_t* row[4];
      for (int i = 0; i < 4; ++i) row[i] = RowAs<std::int16_t>(rows, std::min(token + i, tokens - 1), first);
      JoinKeys(row, count, low, high);
    }
    for (int c = 0; c < count; ++c) {
      least[first + c] = OfKey(low[c]);
      greatest[first + c] = OfKey(high[c]);
    }
  }
}

void ChannelRanges(ConstRows rows, int tokens, int channels, float* least, float* greatest) {
  return (rows.type == ElementType::kBf16 ? Bf16Ranges : FloatRanges)(rows, tokens, channels, least, greatest);
}

template <typename T>
float Magnitude(const T* row, int channels) {
  const Words words;
  const int lanes = int(hn::Lanes(words));
  const auto mask = hn::Set(words, 0x7fffffff);
  auto greatest = hn::Zero(words);  // magnitude bits are ordered like magnitudes, NaN above all
  int c = 0;
  for (; c + lanes <= channels; c += lanes) {
    greatest = hn::Max(greatest, hn::And(hn::BitCast(words, LoadValues(row + c)), mask));
  }
  std::uint32_t bits = hn::GetLane(hn::MaxOfLanes(words, greatest));
  for (; c < channels; ++c) bits = std::max(bits, std::bit_cast<std::uint32_t>(LoadValue(row + c)) & 0x7fffffffu);
  return std::bit_cast<float>(bits);
}

void TokenMagnitudes(ConstRows rows, int tokens, int channels, float* magnitudes) {
  for (int token = 0; token < tokens; ++token) {
    magnitudes[token] = rows.type == ElementType::kBf16 ? Magnitude(RowAs<std::uint16_t>(rows, token, 0), channels)
                                                        : Magnitude(RowAs<float>(rows, token, 0), channels);
  }
}

// ---- code rows ----

// Where one token of one piece of the codes lies, and where in the joined byte it belongs.
struct PieceRow {
  std::size_t offset;  // of the token's row of bytes, before the channel
  int shift, width, place;
};
struct PieceRows {
  PieceRow rows[4];
  int count = 0;
};

// The pieces of codes of `width` bits whose last bit is bit `place` of the joined byte.
HWY_INLINE void AddPieces(int tokens, int channels, int width, int place, int token, PieceRows* pieces) {
  std::size_t offset = 0;
  int left = width;
  for (int piece : kPieces) {
    if ((width & piece) == 0) continue;
    left -= piece;
    const int per_byte = 8 / piece;
    pieces->rows[pieces->count++] = {offset + std::size_t(token / per_byte) * std::size_t(channels),
                                     token % per_byte * piece, piece, place + left};
    offset += RowBytes(tokens, channels, piece);
  }
}

// The `width` bits of every byte at bit `from` move to bit `to`; all others become 0.
HWY_INLINE hn::Vec<Bytes> MoveBits(hn::Vec<Bytes> bytes, int width, int from, int to) {
#if HWY_TARGET == HWY_SCALAR
  const Bytes words;
#else
  const hn::Repartition<std::uint16_t, Bytes> words;  // there are no shifts of bytes; the mask takes what crosses over
#endif
  const auto low = hn::BitCast(Bytes(), hn::ShiftRightSame(hn::BitCast(words, bytes), from));
  const auto code = hn::And(low, hn::Set(Bytes(), std::uint8_t((1 << width) - 1)));
  return hn::BitCast(Bytes(), hn::ShiftLeftSame(hn::BitCast(words, code), to));
}
HWY_INLINE std::uint8_t MoveBits(std::uint8_t byte, int width, int from, int to) {
  return std::uint8_t((byte >> from & ((1 << width) - 1)) << to);
}

// A piece of a joined byte from the token's row, and into it.
template <typename V>
HWY_INLINE V Take(V row, const PieceRow& piece) {
  return MoveBits(row, piece.width, piece.shift, piece.place);
}
template <typename V>
HWY_INLINE V Put(V joined, const PieceRow& piece) {
  return MoveBits(joined, piece.width, piece.place, piece.shift);
}

HWY_INLINE void JoinCodes(const std::uint8_t* const (&from)[4], const PieceRows& pieces, int count,
                          std::uint8_t* joined) {
  const Bytes bytes;
  const int lanes = int(hn::Lanes(bytes));
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    auto all = hn::Zero(bytes);
    for (int i = 0; i < pieces.count; ++i) {
      all = hn::Or(all, Take(hn::LoadU(bytes, from[i] + c), pieces.rows[i]));
    }
    hn::StoreU(all, bytes, joined + c);
  }
  for (; c < count; ++c) {
    joined[c] = 0;
    for (int i = 0; i < pieces.count; ++i) joined[c] |= Take(from[i][c], pieces.rows[i]);
  }
}

// The first token of a row of bytes writes it, later ones add to it.
HWY_INLINE void SplitCodes(const std::uint8_t* joined, const PieceRow& piece, int count, std::uint8_t* to) {
  const Bytes bytes;
  const int lanes = int(hn::Lanes(bytes));
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    auto code = Put(hn::LoadU(bytes, joined + c), piece);
    if (piece.shift != 0) code = hn::Or(code, hn::LoadU(bytes, to + c));
    hn::StoreU(code, bytes, to + c);
  }
  for (; c < count; ++c) {
    const std::uint8_t code = Put(joined[c], piece);
    to[c] = piece.shift != 0 ? std::uint8_t(to[c] | code) : code;
  }
}

// ---- nested ----

void NestedScales(const float* base, const float* unit, const float* least, const float* greatest, int channels,
                  std::byte* offset, std::byte* width, float* low, float* inverse_cell) {
  for (int c = 0; c < channels; ++c) {
    const NestedChunkScale scale = NestedChunkScaleOf(base[c], unit[c], least[c], greatest[c]);
    offset[c] = std::byte(scale.offset);
    width[c] = std::byte(scale.width);
    low[c] = NestedLow(base[c], unit[c], scale.offset);
    inverse_cell[c] = NestedInverse(NestedCell(unit[c], scale.width));
  }
}

void NestedGrid(const float* base, const float* unit, const std::byte* offset, const std::byte* width, int channels,
                float* low, float* cell) {
  const Floats floats;
  const Integers integers;
  const int lanes = int(hn::Lanes(floats));
  const auto values = [&](const std::byte* codes) {
    return hn::PromoteTo(integers, hn::LoadU(Codes(), AsBytes(codes)));
  };
  int c = 0;
  for (; c + lanes <= channels; c += lanes) {
    const auto units = hn::LoadU(floats, unit + c);
    const auto offsets = hn::Mul(hn::ConvertTo(floats, values(offset + c)), units);
    hn::StoreU(hn::Add(hn::LoadU(floats, base + c), offsets), floats, low + c);
    const auto widths = hn::ConvertTo(floats, hn::Add(values(width + c), hn::Set(integers, 1)));
    hn::StoreU(hn::Mul(hn::Mul(widths, units), hn::Set(floats, 1 / kNestedCells)), floats, cell + c);
  }
  for (; c < channels; ++c) {
    low[c] = NestedLow(base[c], unit[c], std::uint8_t(offset[c]));
    cell[c] = NestedCell(unit[c], std::uint8_t(width[c]));
  }
}

template <typename T>
HWY_INLINE void NestedRow(const T* row, int count, const float* low, const float* inverse_cell, std::uint8_t* n) {
  const Floats floats;
  const int lanes = int(hn::Lanes(floats));
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    const auto above = hn::Sub(LoadValues(row + c), hn::LoadU(floats, low + c));
    const auto position = hn::Mul(above, hn::LoadU(floats, inverse_cell + c));
    const auto clamped = hn::Min(hn::Max(position, hn::Zero(floats)), hn::Set(floats, 255.0f));
    hn::StoreU(hn::DemoteTo(Codes(), hn::ConvertTo(Integers(), clamped)), Codes(), n + c);
  }
  for (; c < count; ++c) n[c] = std::uint8_t(NestedQuantize(LoadValue(row + c), low[c], inverse_cell[c]));
}

template <typename T>
HWY_INLINE void CentreRow(const std::uint8_t* n, int count, float half, const float* low, const float* cell, T* row) {
  const Floats floats;
  const int lanes = int(hn::Lanes(floats));
  const auto halfs = hn::Set(floats, half);
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    const auto first = hn::ConvertTo(floats, hn::PromoteTo(Integers(), hn::LoadU(Codes(), n + c)));
    const auto above = hn::Mul(hn::Add(first, halfs), hn::LoadU(floats, cell + c));
    StoreValues(hn::Add(hn::LoadU(floats, low + c), above), row + c);
  }
  for (; c < count; ++c) StoreValue(NestedCentre(n[c], half, low[c], cell[c]), row + c);
}

template <typename T>
void NestedQuantizeAs(ConstRows rows, int tokens, int channels, int anchor_bits, const float* low,
                      const float* inverse_cell, std::byte* anchor, std::byte* residual) {
  const int rest = kNestedBits - anchor_bits;
  for (int first = 0; first < channels; first += kBlock) {
    const int count = std::min(kBlock, channels - first);
    for (int token = 0; token < tokens; ++token) {
      std::uint8_t n[kBlock];
      NestedRow(RowAs<T>(rows, token, first), count, low + first, inverse_cell + first, n);
      PieceRows pieces;
      AddPieces(tokens, channels, anchor_bits, rest, token, &pieces);
      const int anchor_pieces = pieces.count;
      AddPieces(tokens, channels, rest, 0, token, &pieces);
      for (int i = 0; i < pieces.count; ++i) {
        std::byte* to = (i < anchor_pieces ? anchor : residual) + pieces.rows[i].offset + first;
        SplitCodes(n, pieces.rows[i], count, AsBytes(to));
      }
    }
  }
}

template <typename T>
void NestedReconstructAs(const std::byte* anchor, const std::byte* residual, int tokens, int channels, int anchor_bits,
                         const float* low, const float* cell, Rows rows) {
  const int rest = kNestedBits - anchor_bits;
  const float half = NestedHalf(residual != nullptr ? 0 : rest);
  for (int first = 0; first < channels; first += kBlock) {
    const int count = std::min(kBlock, channels - first);
    for (int token = 0; token < tokens; ++token) {
      PieceRows pieces;
      AddPieces(tokens, channels, anchor_bits, rest, token, &pieces);
      const int anchor_pieces = pieces.count;
      if (residual != nullptr) AddPieces(tokens, channels, rest, 0, token, &pieces);
      const std::uint8_t* from[4] = {};
      for (int i = 0; i < pieces.count; ++i) {
        from[i] = AsBytes((i < anchor_pieces ? anchor : residual) + pieces.rows[i].offset + first);
      }
      std::uint8_t n[kBlock];
      JoinCodes(from, pieces, count, n);
      CentreRow(n, count, half, low + first, cell + first, RowAs<T>(rows, token, first));
    }
  }
}

void NestedQuantizeRows(ConstRows rows, int tokens, int channels, int anchor_bits, const float* low,
                        const float* inverse_cell, std::byte* anchor, std::byte* residual) {
  const auto quantize = rows.type == ElementType::kBf16 ? NestedQuantizeAs<std::uint16_t> : NestedQuantizeAs<float>;
  quantize(rows, tokens, channels, anchor_bits, low, inverse_cell, anchor, residual);
}

void NestedReconstructRows(const std::byte* anchor, const std::byte* residual, int tokens, int channels,
                           int anchor_bits, const float* low, const float* cell, Rows rows) {
  const auto reconstruct =
      rows.type == ElementType::kBf16 ? NestedReconstructAs<std::uint16_t> : NestedReconstructAs<float>;
  reconstruct(anchor, residual, tokens, channels, anchor_bits, low, cell, rows);
}

// ---- int8, int4 ----

// Codes are signed: after the bits have been moved to the top of a byte, an arithmetic shift brings them down.
template <typename T>
HWY_INLINE void IntegerRow(const T* row, int count, float inverse_step, std::uint8_t* codes) {
  const Floats floats;
  const int lanes = int(hn::Lanes(floats));
  const hn::Rebind<std::int8_t, Floats> narrow;
  const auto magic = hn::Set(floats, 12582912.0f);  // NearestInteger
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    const auto scaled = hn::Mul(LoadValues(row + c), hn::Set(floats, inverse_step));
    const auto moved = hn::BitCast(Integers(), hn::Add(scaled, magic));
    const auto nearest = hn::Sub(moved, hn::BitCast(Integers(), magic));
    hn::StoreU(hn::DemoteTo(narrow, nearest), narrow, reinterpret_cast<std::int8_t*>(codes + c));
  }
  for (; c < count; ++c) codes[c] = std::uint8_t(NearestInteger(LoadValue(row + c) * inverse_step));
}

template <typename T>
HWY_INLINE void SignedRow(const std::uint8_t* codes, int count, float step, T* row) {
  const Floats floats;
  const int lanes = int(hn::Lanes(floats));
  const hn::Rebind<std::int8_t, Floats> narrow;
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    const auto code = hn::LoadU(narrow, reinterpret_cast<const std::int8_t*>(codes + c));
    const auto values = hn::ConvertTo(floats, hn::PromoteTo(Integers(), code));
    StoreValues(hn::Mul(values, hn::Set(floats, step)), row + c);
  }
  for (; c < count; ++c) StoreValue(float(std::int8_t(codes[c])) * step, row + c);
}

template <typename T>
void IntegerQuantizeAs(ConstRows rows, int tokens, int channels, int bits, const float* inverse_steps,
                       std::byte* codes) {
  for (int first = 0; first < channels; first += kBlock) {
    const int count = std::min(kBlock, channels - first);
    for (int token = 0; token < tokens; ++token) {
      std::uint8_t* to = AsBytes(codes) + RowBytes(token / (8 / bits) * (8 / bits), channels, bits) + first;
      const T* row = RowAs<T>(rows, token, first);
      if (bits == 8) {
        IntegerRow(row, count, inverse_steps[token], to);
        continue;
      }
      std::uint8_t n[kBlock];
      IntegerRow(row, count, inverse_steps[token], n);
      SplitCodes(n, {0, token % 2 * 4, 4, 0}, count, to);
    }
  }
}

template <typename T>
void IntegerReconstructAs(const std::byte* codes, int tokens, int channels, int bits, const float* steps, Rows rows) {
  for (int first = 0; first < channels; first += kBlock) {
    const int count = std::min(kBlock, channels - first);
    for (int token = 0; token < tokens; ++token) {
      const std::uint8_t* from = AsBytes(codes) + RowBytes(token / (8 / bits) * (8 / bits), channels, bits) + first;
      T* row = RowAs<T>(rows, token, first);
      if (bits == 8) {
        SignedRow(from, count, steps[token], row);
        continue;
      }
      // The nibble in the upper half of a byte is the code times 16; the step takes it back exactly.
      std::uint8_t n[kBlock];
      JoinCodes({from}, {{{0, token % 2 * 4, 4, 4}}, 1}, count, n);
      SignedRow(n, count, steps[token] / 16, row);
    }
  }
}

void IntegerQuantizeRows(ConstRows rows, int tokens, int channels, int bits, const float* inverse_steps,
                         std::byte* codes) {
  const auto quantize = rows.type == ElementType::kBf16 ? IntegerQuantizeAs<std::uint16_t> : IntegerQuantizeAs<float>;
  quantize(rows, tokens, channels, bits, inverse_steps, codes);
}

void IntegerReconstructRows(const std::byte* codes, int tokens, int channels, int bits, const float* steps, Rows rows) {
  const auto reconstruct =
      rows.type == ElementType::kBf16 ? IntegerReconstructAs<std::uint16_t> : IntegerReconstructAs<float>;
  reconstruct(codes, tokens, channels, bits, steps, rows);
}

}  // namespace

const CodecKernels* Table() {
  static const CodecKernels kKernels = {
      hwy::TargetName(HWY_TARGET), ChannelRanges,         TokenMagnitudes,     NestedScales,           NestedGrid,
      NestedQuantizeRows,          NestedReconstructRows, IntegerQuantizeRows, IntegerReconstructRows,
  };
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace lynx {

HWY_EXPORT(Table);

const CodecKernels& SimdKernels() { return *HWY_DYNAMIC_DISPATCH(Table)(); }

std::span<const CodecKernels* const> AllSimdKernels() {
  static const std::vector<const CodecKernels*> all = [] {
    std::vector<const CodecKernels*> tables;
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      tables.push_back(&SimdKernels());
    }
    hwy::SetSupportedTargetsForTest(0);
    return tables;
  }();
  return all;
}

}  // namespace lynx
#endif
