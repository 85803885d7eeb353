// Lane = channel, in vectors of any width: every lane does the scalar sequence of elements.h. A row of codes becomes a
// row of bytes and then values, block by block of channels, so that what lies between stays in the first-level cache.
#include "codec/kernels.h"

#include <algorithm>
#include <bit>

#include "codec/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "base/bytes.h"
#include "codec/elements.h"
#include "codec/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lynx {
namespace HWY_NAMESPACE {
namespace {

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

// The extremes of a row join those of the rows before.
HWY_INLINE void JoinKeys(const std::int16_t* row, int channels, std::int16_t* least, std::int16_t* greatest) {
  const Keys keys;
  const int lanes = int(hn::Lanes(keys));
  int c = 0;
  for (; c + lanes <= channels; c += lanes) {
    __builtin_prefetch(row + c + kReadAhead);
    const auto values = KeysOf(hn::LoadU(keys, row + c));
    hn::StoreU(hn::Min(values, hn::LoadU(keys, least + c)), keys, least + c);
    hn::StoreU(hn::Max(values, hn::LoadU(keys, greatest + c)), keys, greatest + c);
  }
  for (; c < channels; ++c) {
    least[c] = std::min(least[c], KeyOf(row[c]));
    greatest[c] = std::max(greatest[c], KeyOf(row[c]));
  }
}

void Bf16Ranges(ConstRows rows, int tokens, int channels, float* least, float* greatest) {
  for (int first = 0; first < channels; first += kBlock) {
    const int count = std::min(kBlock, channels - first);
    alignas(64) std::int16_t low[kBlock], high[kBlock];
    std::fill_n(low, count, std::int16_t{INT16_MAX});
    std::fill_n(high, count, std::int16_t{INT16_MIN});
    for (int token = 0; token < tokens; ++token) JoinKeys(RowAs<std::int16_t>(rows, token, first), count, low, high);
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

// ---- nested ----

// FP16 numbers without their sign -> floats.
HWY_INLINE hn::Vec<Floats> FloatsOf(hn::Vec<Words> halfs) {
  const Words words;
  const auto normal = hn::Add(hn::ShiftLeft<13>(halfs), hn::Set(words, 0x38000000));
  const auto tiny = hn::Mul(hn::ConvertTo(Floats(), hn::BitCast(Integers(), halfs)), hn::Set(Floats(), 0x1p-24f));
  const auto is_tiny = hn::Lt(hn::BitCast(Integers(), halfs), hn::Set(Integers(), 0x400));
  return hn::IfThenElse(hn::RebindMask(Floats(), is_tiny), tiny, hn::BitCast(Floats(), normal));
}

bool FloatsOfHalfs(const std::byte* halfs, int count, float* floats) {
  const Words words;
  const int lanes = int(hn::Lanes(words));
  auto greatest = hn::Zero(words);
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::PromoteTo(words, hn::LoadU(Halfs(), reinterpret_cast<const std::uint16_t*>(halfs + 2 * i)));
    const auto magnitudes = hn::And(bits, hn::Set(words, 0x7fff));
    const auto signs = hn::ShiftLeft<16>(hn::AndNot(hn::Set(words, 0x7fff), bits));
    greatest = hn::Max(greatest, magnitudes);
    hn::StoreU(hn::Or(FloatsOf(magnitudes), hn::BitCast(Floats(), signs)), Floats(), floats + i);
  }
  for (int j = i; j < count; ++j) floats[j] = LoadF16(halfs + 2 * j);
  return hn::GetLane(hn::MaxOfLanes(words, greatest)) < 0x7c00 && AllF16Finite(halfs + 2 * i, count - i);
}

// F16Down and F16Up (rounding.h).
template <bool up>
HWY_INLINE hn::Vec<Words> HalfsOf(hn::Vec<Floats> values) {
  const Words words;
  const Integers integers;
  const auto bits = hn::BitCast(words, values);
  const auto magnitudes = hn::And(bits, hn::Set(words, 0x7fffffff));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitudes), hn::Set(words, 1));
  // 0xfff rounds; the exponent's bias falls from 127 to 15.
  const auto normal =
      hn::ShiftRight<13>(hn::Add(hn::Add(magnitudes, odd), hn::Set(words, std::uint32_t(0xfff - 0x38000000))));
  // Adding 0.5 aligns the mantissa of what is subnormal as FP16.
  const auto aligned = hn::Add(hn::BitCast(Floats(), magnitudes), hn::Set(Floats(), 0.5f));
  const auto tiny = hn::Sub(hn::BitCast(words, aligned), hn::Set(words, 0x3f000000));
  const auto is_tiny = hn::Lt(hn::BitCast(integers, magnitudes), hn::Set(integers, 0x38800000));
  const auto nearest = hn::IfThenElse(hn::RebindMask(words, is_tiny), tiny, normal);
  // One step outwards where rounding to nearest went the other way.
  const auto sign = hn::AndNot(hn::Set(words, 0x7fffffff), bits);
  const auto back = hn::Or(FloatsOf(nearest), hn::BitCast(Floats(), sign));
  const auto wrong = hn::RebindMask(words, up ? hn::Lt(back, values) : hn::Gt(back, values));
  const auto minus_one = hn::Set(words, 0xffffffff), one = hn::Set(words, 1);
  const auto is_negative = hn::Ne(sign, hn::Zero(words));
  const auto step = up ? hn::IfThenElse(is_negative, minus_one, one) : hn::IfThenElse(is_negative, one, minus_one);
  return hn::Or(hn::Add(nearest, hn::IfThenElseZero(wrong, step)), hn::ShiftRight<16>(sign));
}

void NestedPage(const float* least, const float* greatest, int channels, std::byte* halfs) {
  const Floats floats;
  const int lanes = int(hn::Lanes(floats));
  const auto store = [](hn::Vec<Words> words, std::byte* to) {
    hn::StoreU(hn::DemoteTo(Halfs(), hn::BitCast(Integers(), words)), Halfs(), reinterpret_cast<std::uint16_t*>(to));
  };
  int c = 0;
  for (; c + lanes <= channels; c += lanes) {
    const auto base = HalfsOf<false>(hn::LoadU(floats, least + c));
    const auto sign = hn::ShiftLeft<16>(hn::And(base, hn::Set(Words(), 0x8000)));
    const auto low = hn::Or(FloatsOf(hn::And(base, hn::Set(Words(), 0x7fff))), hn::BitCast(floats, sign));
    const auto range = hn::Sub(hn::LoadU(floats, greatest + c), low);
    store(base, halfs + 2 * c);
    store(HalfsOf<true>(hn::Div(range, hn::Set(floats, 255.0f))), halfs + 2 * (channels + c));
  }
  for (; c < channels; ++c) {
    const NestedPageScale scale = NestedPageScaleOf(least[c], greatest[c]);
    StoreLittle(scale.base, halfs + 2 * c);
    StoreLittle(scale.unit, halfs + 2 * (channels + c));
  }
}

void NestedScales(const float* base, const float* unit, const float* least, const float* greatest, int channels,
                  std::byte* offset, std::byte* width, float* first, float* inverse_cell) {
  const Floats floats;
  const Integers integers;
  const int lanes = int(hn::Lanes(floats));
  const auto zero = hn::Zero(floats), one = hn::Set(floats, 1.0f), last = hn::Set(floats, 255.0f);
  int c = 0;
  for (; c + lanes <= channels; c += lanes) {
    const auto bases = hn::LoadU(floats, base + c), units = hn::LoadU(floats, unit + c);
    const auto some = hn::Gt(units, zero);  // of the others all numbers become 0
    const auto divisor = hn::IfThenElse(some, units, one);
    const auto units_below = hn::Min(hn::Div(hn::Sub(hn::LoadU(floats, least + c), bases), divisor), last);
    const auto offsets = hn::ConvertTo(integers, hn::IfThenElseZero(some, units_below));
    const auto lows = hn::Add(bases, hn::Mul(hn::ConvertTo(floats, offsets), units));
    const auto end = hn::Div(hn::Sub(hn::LoadU(floats, greatest + c), lows), divisor);
    const auto whole = hn::ConvertTo(floats, hn::ConvertTo(integers, end));
    const auto ceiling = hn::Add(whole, hn::IfThenElseZero(hn::Lt(whole, end), one));
    const auto cells = hn::Min(hn::Max(ceiling, one), hn::Set(floats, 256.0f));
    const auto widths = hn::IfThenElseZero(some, hn::Sub(cells, one));
    const auto cell = hn::Mul(hn::Mul(hn::Add(widths, one), units), hn::Set(floats, 1 / kNestedCells));
    const auto inverse = hn::Div(one, hn::IfThenElse(some, cell, one));
    hn::StoreU(hn::DemoteTo(Codes(), offsets), Codes(), AsBytes(offset + c));
    hn::StoreU(hn::DemoteTo(Codes(), hn::ConvertTo(integers, widths)), Codes(), AsBytes(width + c));
    hn::StoreU(hn::Add(lows, hn::Mul(hn::Set(floats, NestedHalf(0)), cell)), floats, first + c);
    hn::StoreU(hn::IfThenElseZero(some, inverse), floats, inverse_cell + c);
  }
  for (; c < channels; ++c) {
    const NestedEncoderGrid grid = NestedEncoderGridOf(base[c], unit[c], least[c], greatest[c]);
    offset[c] = std::byte(grid.scale.offset);
    width[c] = std::byte(grid.scale.width);
    first[c] = grid.first;
    inverse_cell[c] = grid.inverse_cell;
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

// NearestInteger: the sum with it has the integer in its low bits.
constexpr float kMagic = 12582912.0f;
HWY_INLINE hn::Vec<Integers> Nearest(hn::Vec<Floats> values) {
  const auto magic = hn::Set(Floats(), kMagic);
  return hn::Sub(hn::BitCast(Integers(), hn::Add(values, magic)), hn::BitCast(Integers(), magic));
}

// What the rows of a block of channels share when they are quantized: n = (value - first) * scale. BF16 rows are
// handled as words of two channels, which takes no shuffles, where there are twice as many channels as lanes: of such a
// group the even channels' numbers come first.
template <typename T>
class QuantizeScales {
 public:
  static constexpr bool kPairs = sizeof(T) == 2 && HWY_TARGET != HWY_SCALAR;

  QuantizeScales(const float* first, const float* scale, int count) : count_(count) {
    std::copy_n(first, count, first_);
    std::copy_n(scale, count, scale_);
    if constexpr (kPairs) {
      const int lanes = int(hn::Lanes(Floats()));
      for (; paired_ + 2 * lanes <= count; paired_ += 2 * lanes) {
        for (float* group : {first_ + paired_, scale_ + paired_}) {
          auto even = hn::Undefined(Floats()), odd = hn::Undefined(Floats());
          hn::LoadInterleaved2(Floats(), group, even, odd);
          hn::StoreU(even, Floats(), group);
          hn::StoreU(odd, Floats(), group + lanes);
        }
      }
    }
  }

  HWY_INLINE void Quantize(const T* row, std::uint8_t* n) const {
    int c = 0;
    if constexpr (kPairs) {
      for (; c < paired_; c += 2 * int(hn::Lanes(Floats()))) QuantizePairs(row + c, c, n + c);
    }
    const Floats floats;
    const int lanes = int(hn::Lanes(floats));
    for (; c + lanes <= count_; c += lanes) {
      const auto position = Position(LoadValues(row + c), c);
      const auto clamped = hn::Min(hn::Max(position, hn::Zero(floats)), hn::Set(floats, 255.0f));
      hn::StoreU(hn::DemoteTo(Codes(), Nearest(clamped)), Codes(), n + c);
    }
    for (; c < count_; ++c) n[c] = std::uint8_t(NestedQuantize(LoadValue(row + c), first_[c], scale_[c]));
  }

 private:
  HWY_INLINE hn::Vec<Floats> Position(hn::Vec<Floats> values, int at) const {
    return hn::Mul(hn::Sub(values, hn::LoadU(Floats(), first_ + at)), hn::LoadU(Floats(), scale_ + at));
  }

#if HWY_TARGET != HWY_SCALAR
  // Positions of BF16 values are at most a few cells outside 0 … 255 (their steps are coarse), so that saturation
  // clamps.
  HWY_INLINE void QuantizePairs(const std::uint16_t* row, int at, std::uint8_t* n) const {
    const Floats floats;
    const Words words;
    const auto pairs = hn::BitCast(words, hn::LoadU(hn::Repartition<std::uint16_t, Words>(), row));
    const auto even = hn::BitCast(floats, hn::ShiftLeft<16>(pairs));
    const auto odd = hn::BitCast(floats, hn::And(pairs, hn::Set(words, 0xffff0000)));
    const auto magic = hn::Set(floats, kMagic);
    const auto even_n = hn::BitCast(words, hn::Add(Position(even, at), magic));
    const auto odd_n = hn::BitCast(words, hn::Add(Position(odd, at + int(hn::Lanes(floats))), magic));
    const auto both = hn::OddEven(hn::BitCast(Keys(), hn::ShiftLeft<16>(odd_n)), hn::BitCast(Keys(), even_n));
    const hn::Rebind<std::uint8_t, Keys> codes;
    hn::StoreU(hn::DemoteTo(codes, both), codes, n);
  }
#endif

  int count_;
  int paired_ = 0;  // channels in groups
  alignas(64) float first_[kBlock];
  alignas(64) float scale_[kBlock];
};

// A row of first + n * cell.
template <typename T>
HWY_INLINE void ReconstructRow(const std::uint8_t* n, const float* first, const float* cell, int count, T* row) {
  const Floats floats;
  const auto centre = [&](int c) HWY_ATTR {
    const auto codes = hn::PromoteTo(Integers(), hn::LoadU(Codes(), n + c));
    const auto above = hn::Mul(hn::ConvertTo(floats, codes), hn::LoadU(floats, cell + c));
    return hn::Add(hn::LoadU(floats, first + c), above);
  };
  for (int c = StreamValues(count, centre, row); c < count; ++c)
    StoreValue(NestedCentre(n[c], first[c], cell[c]), row + c);
}

template <typename T>
void NestedQuantizeAs(ConstRows rows, int tokens, int channels, int anchor_bits, const float* first,
                      const float* inverse_cell, std::byte* anchor, std::byte* residual) {
  const int rest = kNestedBits - anchor_bits;
  Pieces pieces;
  pieces.Add(tokens, channels, anchor_bits, rest);
  const int anchor_pieces = pieces.count;
  pieces.Add(tokens, channels, rest, 0);
  for (int begin = 0; begin < channels; begin += kBlock) {
    const int count = std::min(kBlock, channels - begin);
    const QuantizeScales<T> scales(first + begin, inverse_cell + begin, count);
    for (int token = 0; token < tokens; ++token) {
      alignas(64) std::uint8_t n[kBlock];
      scales.Quantize(RowAs<T>(rows, token, begin), n);
      for (int i = 0; i < pieces.count; ++i) {
        std::byte* to = (i < anchor_pieces ? anchor : residual) + pieces.list[i].Seek(token, channels) + begin;
        SplitCodes(n, pieces.list[i], count, AsBytes(to));
      }
    }
  }
}

template <typename T>
void NestedReconstructAs(const std::byte* anchor, const std::byte* residual, int tokens, int channels, int anchor_bits,
                         const float* low, const float* cell, Rows rows) {
  const int rest = kNestedBits - anchor_bits;
  const float half = NestedHalf(residual != nullptr ? 0 : rest);
  Pieces pieces;
  pieces.Add(tokens, channels, anchor_bits, rest);
  const int anchor_pieces = pieces.count;
  if (residual != nullptr) pieces.Add(tokens, channels, rest, 0);
  for (int begin = 0; begin < channels; begin += kBlock) {
    const int count = std::min(kBlock, channels - begin);
    alignas(64) float first[kBlock];
    for (int c = 0; c < count; ++c) first[c] = NestedFirst(low[begin + c], half, cell[begin + c]);
    for (int token = 0; token < tokens; ++token) {
      const std::uint8_t* from[4];
      for (int i = 0; i < pieces.count; ++i) {
        from[i] = AsBytes((i < anchor_pieces ? anchor : residual) + pieces.list[i].Seek(token, channels) + begin);
      }
      alignas(64) std::uint8_t n[kBlock];
      JoinCodes(from, pieces, count, n);
      ReconstructRow(n, first, cell + begin, count, RowAs<T>(rows, token, begin));
    }
  }
}

void NestedQuantizeRows(ConstRows rows, int tokens, int channels, int anchor_bits, const float* first,
                        const float* inverse_cell, std::byte* anchor, std::byte* residual) {
  const auto quantize = rows.type == ElementType::kBf16 ? NestedQuantizeAs<std::uint16_t> : NestedQuantizeAs<float>;
  quantize(rows, tokens, channels, anchor_bits, first, inverse_cell, anchor, residual);
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
  int c = 0;
  for (; c + lanes <= count; c += lanes) {
    const auto scaled = hn::Mul(LoadValues(row + c), hn::Set(floats, inverse_step));
    hn::StoreU(hn::DemoteTo(narrow, Nearest(scaled)), narrow, reinterpret_cast<std::int8_t*>(codes + c));
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
      alignas(64) std::uint8_t n[kBlock];
      IntegerRow(row, count, inverse_steps[token], n);
      SplitCodes(n, {0, 4, 0, 1, token % 2 * 4}, count, to);
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
      alignas(64) std::uint8_t n[kBlock];
      JoinCodes({from}, {{{0, 4, 4, 1, token % 2 * 4}}, 1}, count, n);
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

extern const LynxKernels kLynxKernels;  // lynx_simd.cc

const CodecKernels* Table() {
  static const CodecKernels kKernels = {
      hwy::TargetName(HWY_TARGET),
      &kLynxKernels,
      ChannelRanges,
      TokenMagnitudes,
      NestedPage,
      FloatsOfHalfs,
      NestedScales,
      NestedGrid,
      NestedQuantizeRows,
      NestedReconstructRows,
      IntegerQuantizeRows,
      IntegerReconstructRows,
  };
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "hwy/cache_control.h"

namespace lynx {

HWY_EXPORT(Table);

void PublishRows() { hwy::FlushStream(); }

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
