// Shared by the kernels of every instruction set (included once for each): values as they lie in memory, and the code
// rows of page_parts.h in vectors. Needs hwy/highway.h before it.
#if defined(LYNX_CODEC_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_CODEC_SIMD_ROWS_INL_H_
#undef LYNX_CODEC_SIMD_ROWS_INL_H_
#else
#define LYNX_CODEC_SIMD_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/float16.h"
#include "codec/kernels.h"
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

constexpr int kBlock = 1024;      // channels
constexpr int kReadAhead = 1024;  // elements behind those at hand that are fetched meanwhile (measured: a fifth faster)

inline std::uint8_t* AsBytes(std::byte* bytes) { return reinterpret_cast<std::uint8_t*>(bytes); }
inline const std::uint8_t* AsBytes(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }

// Values of one row in memory; T is float or std::uint16_t (BF16).
HWY_INLINE hn::Vec<Floats> LoadValues(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE hn::Vec<Floats> LoadValues(const std::uint16_t* from) {
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halfs(), from))));
}
HWY_INLINE float LoadValue(const float* from) { return *from; }
HWY_INLINE float LoadValue(const std::uint16_t* from) { return Bf16ToFloat(*from); }
HWY_INLINE void StoreValues(hn::Vec<Floats> values, float* to) { hn::StoreU(values, Floats(), to); }
// Rounding to BF16 needs no look at NaN: values are finite.
HWY_INLINE void StoreValues(hn::Vec<Floats> values, std::uint16_t* to) {
  const Words words;
  const auto bits = hn::BitCast(words, values);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(words, 0x7fff)), odd));
  hn::StoreU(hn::DemoteTo(Halfs(), hn::BitCast(Integers(), rounded)), Halfs(), to);
}
HWY_INLINE void StoreValue(float value, float* to) { *to = value; }
HWY_INLINE void StoreValue(float value, std::uint16_t* to) { *to = FloatToBf16(value); }

#if HWY_TARGET != HWY_SCALAR
using Shorts = hn::Repartition<std::uint16_t, Floats>;

// Two vectors of values, one behind the other. Rounded up where the lower half of the bits is above a half, or just a
// half and the upper half odd.
HWY_INLINE hn::Vec<Shorts> Bf16Of(hn::Vec<Floats> low, hn::Vec<Floats> high) {
  const Shorts shorts;
  const auto first = hn::BitCast(shorts, low), second = hn::BitCast(shorts, high);
  const auto upper = hn::ConcatOdd(shorts, second, first), lower = hn::ConcatEven(shorts, second, first);
  const auto up = hn::Gt(hn::Or(lower, hn::And(upper, hn::Set(shorts, 1))), hn::Set(shorts, 0x8000));
  return hn::IfThenElse(up, hn::Add(upper, hn::Set(shorts, 1)), upper);
}
#endif

// Stores values(c), a vector of the channels from c on, for the first channels of a row of `count`; returns for how
// many. Where rows are aligned they go past the caches, as pages are decoded by the dozen before one is read (measured:
// a tenth to a third faster, as no line is fetched before it is overwritten); PublishRows makes them visible to other
// threads.
template <typename T, typename Values>
HWY_INLINE int StreamValues(int count, Values values, T* row) {
  int c = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 2) {
    const Shorts shorts;
    const int lanes = int(hn::Lanes(shorts));
    const bool aligned = reinterpret_cast<std::uintptr_t>(row) % (2 * std::size_t(lanes)) == 0;
    for (; c + lanes <= count; c += lanes) {
      const auto both = Bf16Of(values(c), values(c + lanes / 2));
      if (aligned) {
        hn::Stream(both, shorts, row + c);
      } else {
        hn::StoreU(both, shorts, row + c);
      }
    }
  }
#endif
  for (const int lanes = int(hn::Lanes(Floats())); c + lanes <= count; c += lanes) StoreValues(values(c), row + c);
  return c;
}

template <typename T, typename Byte>
auto* RowAs(const BasicRows<Byte>& rows, int token, int channel) {
  if constexpr (std::is_const_v<Byte>) {
    return reinterpret_cast<const T*>(rows.data + token * rows.stride) + channel;
  } else {
    return reinterpret_cast<T*>(rows.data + token * rows.stride) + channel;
  }
}

// ---- code rows ----

// One piece of the codes: where its rows begin, and where in the joined byte it belongs.
struct Piece {
  std::size_t offset;
  int width, place;
  int tokens_log2;  // that share a byte
  int shift = 0;    // of the token at hand

  // Where the token's row of bytes begins.
  std::size_t Seek(int token, int channels) {
    shift = (token & ((1 << tokens_log2) - 1)) * width;
    return offset + std::size_t(token >> tokens_log2) * std::size_t(channels);
  }
};
struct Pieces {
  Piece list[4];
  int count = 0;

  // Those of codes of `width` bits whose last bit is bit `place` of the joined byte.
  void Add(int tokens, int channels, int width, int place) {
    std::size_t offset = 0;
    int left = width;
    for (int piece = kGreatestPiece; piece > 0; piece /= 2) {
      if ((width & piece) == 0) continue;
      left -= piece;
      list[count++] = {offset, piece, place + left, piece == 4 ? 1 : piece == 2 ? 2 : 3};
      offset += RowBytes(tokens, channels, piece);
    }
  }
};

// The `width` bits of every byte at bit `from` move to bit `to`; all others become 0.
HWY_INLINE hn::Vec<Bytes> MoveBits(hn::Vec<Bytes> bytes, int width, int from, int to) {
#if HWY_TARGET == HWY_SCALAR
  const Bytes words;
#else
  const hn::Repartition<std::uint16_t, Bytes> words;  // there are no shifts of bytes; the mask takes what crosses over
#endif
  const auto all = hn::BitCast(words, bytes);
  const auto moved = to >= from ? hn::ShiftLeftSame(all, to - from) : hn::ShiftRightSame(all, from - to);
  return hn::And(hn::BitCast(Bytes(), moved), hn::Set(Bytes(), std::uint8_t(((1 << width) - 1) << to)));
}
HWY_INLINE std::uint8_t MoveBits(std::uint8_t byte, int width, int from, int to) {
  return std::uint8_t((byte >> from & ((1 << width) - 1)) << to);
}

// A piece of a joined byte from the token's row, and into it.
template <typename V>
HWY_INLINE V Take(V row, const Piece& piece) {
  return MoveBits(row, piece.width, piece.shift, piece.place);
}
template <typename V>
HWY_INLINE V Put(V joined, const Piece& piece) {
  return MoveBits(joined, piece.width, piece.place, piece.shift);
}

// joined = the codes of one token of a block.
template <int kCount>
HWY_INLINE void JoinPieces(const std::uint8_t* const (&from)[4], const Piece* pieces, int count, std::uint8_t* joined) {
  const Bytes bytes;
  const int lanes = int(hn::Lanes(bytes));
  const auto take = [&](int i, int c) HWY_ATTR { return Take(hn::LoadU(bytes, from[i] + c), pieces[i]); };
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    auto all = take(0, c);
    if constexpr (kCount > 1) all = hn::Or(all, take(1, c));
    if constexpr (kCount > 2) all = hn::Or(all, take(2, c));
    if constexpr (kCount > 3) all = hn::Or(all, take(3, c));
    hn::StoreU(all, bytes, joined + c);
  }
  for (; c < count; ++c) {
    joined[c] = 0;
    for (int i = 0; i < kCount; ++i) joined[c] |= Take(from[i][c], pieces[i]);
  }
}

HWY_INLINE void JoinCodes(const std::uint8_t* const (&from)[4], const Pieces& pieces, int count, std::uint8_t* joined) {
  switch (pieces.count) {
    case 1:
      return JoinPieces<1>(from, pieces.list, count, joined);
    case 2:
      return JoinPieces<2>(from, pieces.list, count, joined);
    case 3:
      return JoinPieces<3>(from, pieces.list, count, joined);
    default:
      return JoinPieces<4>(from, pieces.list, count, joined);
  }
}

// The first token of a row of bytes writes it, later ones add to it.
HWY_INLINE void SplitCodes(const std::uint8_t* joined, const Piece& piece, int count, std::uint8_t* to) {
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx
HWY_AFTER_NAMESPACE();

#endif  // LYNX_CODEC_SIMD_ROWS_INL_H_
