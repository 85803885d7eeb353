// The coder of the `lynx` kernels in vectors, for every instruction set (included once for each); the words are those
// of rans.h. Needs hwy/highway.h before it.
//
// A block's 32 lanes are vectors of 16-bit halves. Even and odd lanes have their 32-bit states in two vectors, so that
// halves are joined and parted by shifts within lanes. A lane's table stays the same through a block: its thresholds
// are searched by compares and blends, without gathers.
#if defined(LYNX_CODEC_RANS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_CODEC_RANS_SIMD_INL_H_
#undef LYNX_CODEC_RANS_SIMD_INL_H_
#else
#define LYNX_CODEC_RANS_SIMD_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status_macros.h"
#include "codec/rans.h"

HWY_BEFORE_NAMESPACE();
namespace lynx {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

constexpr auto EncodePage = RansEncode;
constexpr auto DecodePage = RansDecode;

#else

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kLanes = kRansLanes;
constexpr std::uint32_t kSlotMask = (1u << kLynxProbabilityBits) - 1u;
constexpr std::int16_t kSlots = 1 << kLynxProbabilityBits;

// Halves of a block's lanes: kVectors vectors of them, and for each two of 32-bit states.
using Halves = hn::CappedTag<std::int16_t, kLanes>;
using HalfBits = hn::RebindToUnsigned<Halves>;
using States = hn::RepartitionToWide<HalfBits>;
using Half = hn::Vec<Halves>;
using State = hn::Vec<States>;
using HalfMask = hn::Mask<Halves>;
constexpr int kHalves = int(hn::MaxLanes(Halves()));
constexpr int kVectors = kLanes / kHalves;

// Groups of eight 16-bit words. Expand: the first words go, in order, to the lanes whose bit is set. Compress: the
// words of those lanes go, in order, to the end.
struct Shuffles {
  alignas(16) std::uint8_t expand[256][16];
  alignas(16) std::uint8_t compress[256][16];
};
constexpr Shuffles MakeShuffles() {
  Shuffles shuffles{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    const int count = std::popcount(bits);
    int seen = 0;
    for (int lane = 0; lane < 8; ++lane) {
      const bool set = (bits >> lane & 1) != 0;
      for (int byte = 0; byte < 2; ++byte) {
        shuffles.expand[bits][2 * lane + byte] = set ? std::uint8_t(2 * seen + byte) : std::uint8_t(0x80);
        if (set) shuffles.compress[bits][2 * (8 - count + seen) + byte] = std::uint8_t(2 * lane + byte);
      }
      seen += set ? 1 : 0;
    }
  }
  return shuffles;
}
constexpr Shuffles kShuffles = MakeShuffles();
using WordGroup = hn::Simd<std::uint16_t, 8, 0>;
using GroupBytes = hn::Simd<std::uint8_t, 16, 0>;

hn::Vec<WordGroup> Shuffle(hn::Vec<WordGroup> words, const std::uint8_t* order) {
  return hn::BitCast(WordGroup(),
                     hn::TableLookupBytes(hn::BitCast(GroupBytes(), words), hn::Load(GroupBytes(), order)));
}

// The next words for the lanes of `bits`, zero in the others. Reads up to kWordsAhead bytes.
constexpr std::ptrdiff_t kWordsAhead = 2 * kLanes + 16;
template <class D>
hn::Vec<D> TakeWords(D d, std::uint32_t bits, const std::byte** from) {
#if HWY_TARGET <= HWY_AVX3_DL
  const std::byte* words = *from;
  *from += 2 * std::popcount(bits);
  return hn::Vec<D>{_mm512_maskz_expand_epi16(bits, _mm512_loadu_si512(words))};
#else
  if constexpr (hn::MaxLanes(D()) == 8) {
    const unsigned byte = bits & 0xffu;
    const auto words = hn::BitCast(WordGroup(), hn::LoadU(GroupBytes(), reinterpret_cast<const std::uint8_t*>(*from)));
    *from += 2 * std::popcount(byte);
    return hn::BitCast(d, Shuffle(words, kShuffles.expand[byte]));
  } else {
    const hn::Half<D> half;
    const auto low = TakeWords(half, bits, from);
    const auto high = TakeWords(half, bits >> hn::MaxLanes(half), from);
    return hn::Combine(d, high, low);
  }
#endif
}

std::uint32_t BitsOf(HalfMask mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(Halves(), mask, bytes);
  if constexpr (kHalves == 8) return bytes[0];
  if constexpr (kHalves == 16) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    return bits;
  }
  std::uint32_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

State EvenHalves(State both) { return hn::And(both, hn::Set(States(), 0xffffu)); }
State OddHalves(State both) { return hn::ShiftRight<16>(both); }
Half Join(State even, State odd) {  // both below 2^16
  return hn::BitCast(Halves(), hn::Or(even, hn::ShiftLeft<16>(odd)));
}

// First slots of a block's symbols, [symbol][lane]; behind the last one 2^12.
struct Thresholds {
  alignas(64) std::int16_t first[kLynxSymbols + 1][kLanes];
  Thresholds(const RansPage& page, int first_channel) {
    for (int symbol = 0; symbol <= kLynxSymbols; ++symbol) {
      for (int lane = 0; lane < kLanes; ++lane) {
        first[symbol][lane] = std::int16_t(page.tables[first_channel + lane]->cumulative[std::size_t(symbol)]);
      }
    }
  }
  Half Of(int symbol, int vector) const { return hn::Load(Halves(), first[symbol] + vector * kHalves); }
};

struct Found {
  Half symbol, first, frequency;
};

// The symbol of each slot by two rounds of three compares each, and one for the last symbol: few operations after one
// another, as each row of symbols waits for the one before it.
Found Find(const Thresholds& thresholds, int vector, Half slot) {
  const Halves d;
  const auto at = [&](int symbol) { return thresholds.Of(symbol, vector); };
  const auto constant = [&](int value) { return hn::Set(d, std::int16_t(value)); };
  const Half t4 = at(4), t8 = at(8), t12 = at(12), t16 = at(16);
  const HalfMask b4 = hn::Lt(slot, t4), b8 = hn::Lt(slot, t8), b12 = hn::Lt(slot, t12), b16 = hn::Lt(slot, t16);
  const auto quarter = [&](Half first, Half second, Half third, Half fourth) {
    return hn::IfThenElse(b8, hn::IfThenElse(b4, first, second), hn::IfThenElse(b12, third, fourth));
  };
  const Half u1 = quarter(at(1), at(5), at(9), at(13)), u2 = quarter(at(2), at(6), at(10), at(14));
  const Half u3 = quarter(at(3), at(7), at(11), at(15));
  const HalfMask c1 = hn::Lt(slot, u1), c2 = hn::Lt(slot, u2), c3 = hn::Lt(slot, u3);
  const auto in_quarter = [&](Half first, Half second, Half third, Half fourth) {
    return hn::IfThenElse(c2, hn::IfThenElse(c1, first, second), hn::IfThenElse(c3, third, fourth));
  };
  const Half first = in_quarter(quarter(hn::Zero(d), t4, t8, t12), u1, u2, u3);
  const Half end = in_quarter(u1, u2, u3, quarter(t4, t8, t12, t16));
  const Half symbol = hn::Add(quarter(hn::Zero(d), constant(4), constant(8), constant(12)),
                              in_quarter(hn::Zero(d), constant(1), constant(2), constant(3)));
  const Half found_first = hn::IfThenElse(b16, first, t16);
  return {hn::IfThenElse(b16, symbol, constant(16)), found_first,
          hn::Sub(hn::IfThenElse(b16, end, constant(kSlots)), found_first)};
}

void StoreSymbols(Half symbols, std::uint8_t* to) {
  const hn::Rebind<std::uint8_t, Halves> bytes;
  hn::StoreU(hn::DemoteTo(bytes, symbols), bytes, to);
}

// Decodes rows of a full block while kWordsAhead bytes are left; returns how many.
int DecodeRows(const Thresholds& thresholds, int tokens, std::size_t stride, std::uint8_t* symbols,
               std::uint32_t* states, const std::byte** words, const std::byte* words_end) {
  const Halves d;
  const States s;
  const State slot_mask = hn::Set(s, kSlotMask), high_half = hn::Set(s, 0xffff0000u);
  State even[kVectors], odd[kVectors];
  for (int v = 0; v < kVectors; ++v) hn::LoadInterleaved2(s, states + v * kHalves, even[v], odd[v]);
  const std::byte* from = *words;
  int token = 0;
  for (; token < tokens && words_end - from >= kWordsAhead; ++token, symbols += stride) {
    for (int v = 0; v < kVectors; ++v) {
      const Half slot = Join(hn::And(even[v], slot_mask), hn::And(odd[v], slot_mask));
      const Found found = Find(thresholds, v, slot);
      StoreSymbols(found.symbol, symbols + v * kHalves);
      const State frequency = hn::BitCast(s, found.frequency), rest = hn::BitCast(s, hn::Sub(slot, found.first));
      State e =
          hn::Add(hn::Mul(EvenHalves(frequency), hn::ShiftRight<kLynxProbabilityBits>(even[v])), EvenHalves(rest));
      State o = hn::Add(hn::Mul(OddHalves(frequency), hn::ShiftRight<kLynxProbabilityBits>(odd[v])), OddHalves(rest));
      const State e_high = hn::ShiftRight<16>(e), o_high = hn::And(o, high_half);
      const HalfMask small = hn::Eq(hn::BitCast(d, hn::Or(e_high, o_high)), hn::Zero(d));
      const State taken = hn::BitCast(s, TakeWords(HalfBits(), BitsOf(small), &from));
      e = hn::Or(hn::IfThenElse(hn::Eq(e_high, hn::Zero(s)), hn::ShiftLeft<16>(e), e), EvenHalves(taken));
      o = hn::Or(hn::IfThenElse(hn::Eq(o_high, hn::Zero(s)), hn::ShiftLeft<16>(o), o), OddHalves(taken));
      even[v] = e, odd[v] = o;
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreInterleaved2(even[v], odd[v], s, states + v * kHalves);
  *words = from;
  return token;
}

// A full block. Where less than kWordsAhead is left, the words go on in a copy with zeros behind them.
Status DecodeBlock(const RansPage& page, int first, std::uint8_t* symbols, RansStates* states, const std::byte** from,
                   const std::byte* end) {
  const Thresholds thresholds(page, first);
  const std::size_t stride = std::size_t(page.channels);
  symbols += first;
  const int done = DecodeRows(thresholds, page.tokens, stride, symbols, states->data(), from, end);
  if (done == page.tokens) return Ok();
  const std::ptrdiff_t left = end - *from;
  std::byte copy[2 * kWordsAhead] = {};
  std::copy_n(*from, left, +copy);
  const std::byte* word = copy;
  const int more = DecodeRows(thresholds, page.tokens - done, stride, symbols + std::size_t(done) * stride,
                              states->data(), &word, copy + left + kWordsAhead);
  if (done + more < page.tokens || word - copy > left) return Corrupt("page stream ends within its symbols");
  *from += word - copy;
  return Ok();
}

Status DecodePage(const RansPage& page, RansStates states, std::span<const std::byte> words, std::uint8_t* symbols,
                  std::span<std::uint16_t> carried, std::size_t* used) {
  LYNX_RETURN_IF_ERROR(RansCheckStates(page, states));
  const std::byte* from = words.data();
  const std::byte* end = words.data() + words.size();
  for (int first = 0; first < page.channels; first += kLanes) {
    LYNX_RETURN_IF_ERROR(page.channels - first >= kLanes ? DecodeBlock(page, first, symbols, &states, &from, end)
                                                         : RansDecodeBlock(page, first, symbols, &states, &from, end));
  }
  *used = std::size_t(from - words.data()) / 2;
  return RansFinish(page, states, carried);
}

// x / f for 2^16 <= x < f * 2^20, exact: in single precision, and without the lowest bit of x, the quotient is off by
// one at most.
State Divide(State x, State f, State* rest) {
  const States s;
  const hn::RebindToSigned<States> i;
  const hn::RebindToFloat<States> r;
  const auto divisor = hn::BitCast(i, f), one = hn::Set(i, 1);
  const auto inverse = hn::Div(hn::Set(r, 2.0f), hn::ConvertTo(r, divisor));
  const auto quotient = hn::ConvertTo(i, hn::Mul(hn::ConvertTo(r, hn::BitCast(i, hn::ShiftRight<1>(x))), inverse));
  const auto left = hn::Sub(hn::BitCast(i, x), hn::Mul(quotient, divisor));  // -f … 2 f
  const auto over = hn::Lt(left, hn::Zero(i)), under = hn::Not(hn::Lt(left, divisor));
  *rest = hn::BitCast(s, hn::Add(left, hn::Sub(hn::IfThenElseZero(over, divisor), hn::IfThenElseZero(under, divisor))));
  return hn::BitCast(s, hn::Add(quotient, hn::Sub(hn::IfThenElseZero(under, one), hn::IfThenElseZero(over, one))));
}

// The first slot of each lane's symbol (next = 0) or of the one behind it (next = 1), and with the same masks both.
struct Range {
  Half first, end;
};
Range RangeOf(const Thresholds& thresholds, int vector, Half symbol) {
  const Halves d;
  const auto bit = [&](int value) {
    const Half mask = hn::Set(d, std::int16_t(value));
    return hn::Eq(hn::And(symbol, mask), mask);
  };
  const HalfMask b1 = bit(1), b2 = bit(2), b4 = bit(4), b8 = bit(8), b16 = bit(16);
  const auto search = [&](int next) {
    const auto at = [&](int each) { return thresholds.Of(each + next, vector); };
    const auto pair = [&](int each) { return hn::IfThenElse(b1, at(each + 1), at(each)); };
    const auto four = [&](int each) { return hn::IfThenElse(b2, pair(each + 2), pair(each)); };
    const auto eight = [&](int each) { return hn::IfThenElse(b4, four(each + 4), four(each)); };
    return hn::IfThenElse(b16, at(16), hn::IfThenElse(b8, eight(8), eight(0)));
  };
  return {search(0), search(1)};
}

// The words of the lanes of `bits` go, in order, before *to. Writes up to 16 bytes before them.
template <class V>
void PutWords(V words, std::uint32_t bits, std::uint16_t** to) {
#if HWY_TARGET <= HWY_AVX3_DL
  const int count = std::popcount(bits);
  *to -= count;
  _mm512_mask_storeu_epi16(*to, std::uint32_t((std::uint64_t{1} << count) - 1u),
                           _mm512_maskz_compress_epi16(bits, words.raw));
#else
  using D = hn::DFromV<V>;
  if constexpr (hn::MaxLanes(D()) == 8) {
    const unsigned byte = bits & 0xffu;
    const auto shuffled = Shuffle(hn::BitCast(WordGroup(), words), kShuffles.compress[byte]);
    hn::StoreU(shuffled, WordGroup(), *to - 8);
    *to -= std::popcount(byte);
  } else {
    const hn::Half<D> half;
    PutWords(hn::UpperHalf(half, words), bits >> hn::MaxLanes(half), to);
    PutWords(hn::LowerHalf(half, words), bits, to);
  }
#endif
}

// Encodes the rows of a full block, the last one first.
void EncodeRows(const Thresholds& thresholds, int tokens, std::size_t stride, const std::uint8_t* symbols,
                std::uint32_t* states, std::uint16_t** words) {
  const Halves d;
  const States s;
  const hn::Rebind<std::uint8_t, Halves> bytes;
  State even[kVectors], odd[kVectors];
  for (int v = 0; v < kVectors; ++v) hn::LoadInterleaved2(s, states + v * kHalves, even[v], odd[v]);
  std::uint16_t* to = *words;
  for (int token = tokens - 1; token >= 0; --token) {
    for (int v = kVectors - 1; v >= 0; --v) {
      const std::uint8_t* row = symbols + std::size_t(token) * stride + v * kHalves;
      const Range range = RangeOf(thresholds, v, hn::PromoteTo(d, hn::LoadU(bytes, row)));
      const Half frequency = hn::Sub(range.end, range.first);
      const Half high = Join(hn::ShiftRight<20>(even[v]), hn::ShiftRight<20>(odd[v]));
      const HalfMask full = hn::Not(hn::Lt(high, frequency));
      const Half low = Join(EvenHalves(even[v]), odd[v]);
      PutWords(hn::BitCast(HalfBits(), low), BitsOf(full), &to);
      const State f = hn::BitCast(s, frequency), c = hn::BitCast(s, range.first);
      // All ones in the lanes that are full.
      const State shifted = hn::BitCast(s, hn::VecFromMask(d, full));
      const auto step = [&](State x, State is_full, State part_f, State part_c) {
        x = hn::IfThenElse(hn::Eq(is_full, hn::Zero(s)), x, hn::ShiftRight<16>(x));
        State rest;
        const State quotient = Divide(x, part_f, &rest);
        return hn::Add(hn::Add(hn::ShiftLeft<kLynxProbabilityBits>(quotient), rest), part_c);
      };
      even[v] = step(even[v], EvenHalves(shifted), EvenHalves(f), EvenHalves(c));
      odd[v] = step(odd[v], OddHalves(shifted), OddHalves(f), OddHalves(c));
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreInterleaved2(even[v], odd[v], s, states + v * kHalves);
  *words = to;
}

std::uint16_t* EncodePage(const RansPage& page, const std::uint8_t* symbols, std::span<const std::uint16_t> carried,
                          std::uint16_t* words_end, RansStates* states) {
  RansBegin(carried, states);
  std::uint16_t* word = words_end;
  for (int first = (page.channels - 1) / kLanes * kLanes; first >= 0; first -= kLanes) {
    if (page.channels - first >= kLanes) {
      const Thresholds thresholds(page, first);
      EncodeRows(thresholds, page.tokens, std::size_t(page.channels), symbols + first, states->data(), &word);
    } else {
      RansEncodeBlock(page, first, symbols, states, &word);
    }
  }
  return word;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx
HWY_AFTER_NAMESPACE();

#endif  // LYNX_CODEC_RANS_SIMD_INL_H_
