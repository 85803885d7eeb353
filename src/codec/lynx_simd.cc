// The `lynx` kernels with Highway, one source for every target. Rows are handled a vector of channels at a time; what
// is left of a row is done element by element by the definitions of lynx_reference.h.
#include "codec/lynx_kernels.h"

#include "codec/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/lynx_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "codec/lynx_reference.h"
#include "codec/rans_simd-inl.h"
#include "codec/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lynx::HWY_NAMESPACE {
namespace {

constexpr int kFloats = int(hn::MaxLanes(Floats()));

// Full vectors of channels, and from where the rest is done one by one.
int VectorChannels(int channels) { return channels / kFloats * kFloats; }

void Widen(ConstRows from, int tokens, int channels, float* rows) {
  const int whole = VectorChannels(channels);
  for (int t = 0; t < tokens; ++t, rows += channels) {
    if (from.type == ElementType::kF32) {
      std::copy_n(RowAs<float>(from, t, 0), channels, rows);
      continue;
    }
    const auto* row = RowAs<std::uint16_t>(from, t, 0);
    for (int c = 0; c < whole; c += kFloats) StoreValues(LoadValues(row + c), rows + c);
    for (int c = whole; c < channels; ++c) rows[c] = LoadValue(row + c);
  }
}

void Narrow(const float* rows, int tokens, int channels, Rows to) {
  const int whole = VectorChannels(channels);
  for (int t = 0; t < tokens; ++t, rows += channels) {
    auto* row = RowAs<std::uint16_t>(to, t, 0);
    for (int c = 0; c < whole; c += kFloats) StoreValues(LoadValues(rows + c), row + c);
    for (int c = whole; c < channels; ++c) StoreValue(rows[c], row + c);
  }
}

// Turns pairs by an angle whose sine has this sign.
template <bool inverse>
void Turn(const RopeTable& rope, int first_token, int tokens, std::size_t stride, float* rows) {
  const Floats d;
  const int pairs = rope.pairs(), whole = VectorChannels(pairs);
  for (int token = 0; token < tokens; ++token, rows += stride) {
    const float* cosines = rope.cosines(first_token + token);
    const float* sines = rope.sines(first_token + token);
    float* head = rows + rope.offset();
    for (int pair = 0; pair < whole; pair += kFloats) {
      float* at = rope.adjacent() ? head + 2 * pair : head + pair;
      hn::Vec<Floats> x, y;
      if (rope.adjacent()) {
        hn::LoadInterleaved2(d, at, x, y);
      } else {
        x = hn::LoadU(d, at), y = hn::LoadU(d, at + pairs);
      }
      const auto cosine = hn::LoadU(d, cosines + pair), sine = hn::LoadU(d, sines + pair);
      const auto x_cosine = hn::Mul(x, cosine), x_sine = hn::Mul(x, sine);
      const auto y_cosine = hn::Mul(y, cosine), y_sine = hn::Mul(y, sine);
      x = inverse ? hn::Add(x_cosine, y_sine) : hn::Sub(x_cosine, y_sine);
      y = inverse ? hn::Sub(y_cosine, x_sine) : hn::Add(x_sine, y_cosine);
      if (rope.adjacent()) {
        hn::StoreInterleaved2(x, y, d, at);
      } else {
        hn::StoreU(x, d, at), hn::StoreU(y, d, at + pairs);
      }
    }
    for (int pair = whole; pair < pairs; ++pair) {
      rope.TurnPair(rows, first_token + token, pair, inverse);
    }
  }
}

void Spreads(const float* rows, int tokens, int channels, float* spreads) {
  const Floats d;
  const auto count = hn::Set(d, float(tokens));
  const int whole = VectorChannels(channels);
  for (int c = 0; c < whole; c += kFloats) {
    auto sum = hn::Zero(d), spread = hn::Zero(d);
    for (int t = 0; t < tokens; ++t) sum = hn::Add(sum, hn::LoadU(d, rows + std::size_t(t) * channels + c));
    const auto mean = hn::Div(sum, count);
    for (int t = 0; t < tokens; ++t) {
      spread = hn::Add(spread, hn::Abs(hn::Sub(hn::LoadU(d, rows + std::size_t(t) * channels + c), mean)));
    }
    hn::StoreU(hn::Div(spread, count), d, spreads + c);
  }
  for (int c = whole; c < channels; ++c) spreads[c] = LynxSpreadOf(rows + c, tokens, std::size_t(channels));
}

void Magnitudes(const float* rows, int tokens, int channels, float* greatest) {
  const Floats d;
  const int whole = VectorChannels(channels);
  for (int c = 0; c < whole; c += kFloats) {
    auto most = hn::Zero(d);
    for (int t = 0; t < tokens; ++t) {
      most = hn::Max(most, hn::Abs(hn::LoadU(d, rows + std::size_t(t) * channels + c)));
    }
    hn::StoreU(most, d, greatest + c);
  }
  for (int c = whole; c < channels; ++c) greatest[c] = LynxMagnitudeOf(rows + c, tokens, std::size_t(channels));
}

void Cells(const float* rows, int tokens, int channels, const float* per_cell, std::int32_t* cells) {
  const Floats d;
  const Integers i;
  const int whole = VectorChannels(channels);
  for (int t = 0; t < tokens; ++t, rows += channels, cells += channels) {
    for (int c = 0; c < whole; c += kFloats) {
      const auto scaled = hn::Mul(hn::LoadU(d, rows + c), hn::LoadU(d, per_cell + c));
      hn::StoreU(hn::ConvertTo(i, hn::Floor(scaled)), i, cells + c);
    }
    for (int c = whole; c < channels; ++c) cells[c] = LynxCellOf(rows[c], per_cell[c]);
  }
}

// Sums of term(cell, channel) per channel over the tokens.
template <typename VectorTerm, typename Term>
void SumUp(const std::int32_t* cells, int tokens, int channels, std::int32_t* sums, VectorTerm vector_term, Term term) {
  const Integers i;
  const int whole = VectorChannels(channels);
  for (int c = 0; c < whole; c += kFloats) {
    auto sum = hn::Zero(i);
    for (int t = 0; t < tokens; ++t) {
      sum = hn::Add(sum, vector_term(hn::LoadU(i, cells + std::size_t(t) * channels + c), c));
    }
    hn::StoreU(sum, i, sums + c);
  }
  for (int c = whole; c < channels; ++c) {
    sums[c] = 0;
    for (int t = 0; t < tokens; ++t) sums[c] += term(cells[std::size_t(t) * channels + c], c);
  }
}

void CellSums(const std::int32_t* cells, int tokens, int channels, std::int32_t* sums) {
  SumUp(
      cells, tokens, channels, sums, [](auto cell, int) { return cell; }, [](std::int32_t cell, int) { return cell; });
}

void CellDistances(const std::int32_t* cells, int tokens, int channels, const std::int32_t* means, std::int32_t* sums) {
  const Integers i;
  SumUp(
      cells, tokens, channels, sums,
      [&](auto cell, int c) {
        const auto centre = hn::Add(hn::ShiftLeft<1>(cell), hn::Set(i, 1));
        return hn::Abs(hn::Sub(centre, hn::ShiftLeft<3>(hn::LoadU(i, means + c))));
      },
      [&](std::int32_t cell, int c) { return LynxDistanceOf(cell, means[c]); });
}

void Split(std::int32_t* cells, int tokens, int channels, const LynxChannels& of, std::uint8_t* symbols,
           std::uint8_t* residuals) {
  const Integers i;
  const Codes b;
  const auto outermost = hn::Set(i, kLynxOutermost);
  const int whole = VectorChannels(channels);
  for (int c = 0; c < whole; c += kFloats) {
    const auto shift = hn::LoadU(i, of.shifts + c);
    const auto half = hn::ShiftRight<1>(hn::Shl(hn::Set(i, 1), shift));
    const auto centre = hn::Sub(hn::Set(i, 8), hn::ShiftLeft<2>(hn::LoadU(i, of.means + c)));
    for (int t = 0; t < tokens; ++t) {
      const std::size_t at = std::size_t(t) * channels + c;
      const auto nested = hn::Add(hn::LoadU(i, cells + at), centre);
      hn::StoreU(nested, i, cells + at);
      const auto high = hn::Shr(hn::Add(hn::ShiftRight<kLynxResidualBits>(nested), half), shift);
      const auto bounded = hn::Max(hn::Min(high, outermost), hn::Neg(outermost));
      hn::StoreU(hn::DemoteTo(b, hn::Add(bounded, outermost)), b, symbols + at);
      hn::StoreU(hn::DemoteTo(b, hn::And(nested, hn::Set(i, 15))), b, residuals + at);
    }
  }
  for (int c = whole; c < channels; ++c) {
    LynxSplitChannel(cells + c, tokens, std::size_t(channels), of.means[c], of.shifts[c], symbols + c, residuals + c);
  }
}

std::size_t FindOutermost(const std::uint8_t* symbols, std::size_t count, std::uint32_t* positions) {
  const Bytes d;
  constexpr std::size_t kBytes = hn::MaxLanes(Bytes());
  const auto first = hn::Zero(d), last = hn::Set(d, kLynxSymbols - 1);
  std::size_t found = 0;
  const auto search = [&](std::size_t from, std::size_t to) {
    for (std::size_t at = from; at < to; ++at) {
      positions[found] = std::uint32_t(at);
      found += LynxIsOutermost(symbols[at]) ? 1 : 0;
    }
  };
  std::size_t at = 0;
  for (; at + kBytes <= count; at += kBytes) {
    const auto row = hn::LoadU(d, symbols + at);
    if (!hn::AllFalse(d, hn::Or(hn::Eq(row, first), hn::Eq(row, last)))) search(at, at + kBytes);
  }
  search(at, count);
  return found;
}

void Centres(const std::uint8_t* symbols, int tokens, int channels, const LynxChannels& of, std::int32_t* centres) {
  const Integers i;
  const Codes b;
  const int whole = VectorChannels(channels);
  for (int c = 0; c < whole; c += kFloats) {
    const auto shift = hn::LoadU(i, of.shifts + c);
    const auto scale = hn::Shl(hn::Set(i, 32), shift);
    const auto half = hn::ShiftLeft<5>(hn::ShiftRight<1>(hn::Shl(hn::Set(i, 1), shift)));
    const auto mean = hn::ShiftLeft<3>(hn::LoadU(i, of.means + c));
    const auto base = hn::Sub(hn::Sub(mean, hn::Set(i, 16)), hn::Add(hn::ShiftLeft<3>(scale), half));
    for (int t = 0; t < tokens; ++t) {
      const std::size_t at = std::size_t(t) * channels + c;
      const auto symbol = hn::PromoteTo(i, hn::LoadU(b, symbols + at));
      hn::StoreU(hn::Add(hn::Mul(symbol, scale), base), i, centres + at);
    }
  }
  for (int c = whole; c < channels; ++c) {
    for (int t = 0; t < tokens; ++t) {
      const std::size_t at = std::size_t(t) * channels + c;
      centres[at] = LynxCoarseCentre(symbols[at], of.shifts[c], of.means[c]);
    }
  }
}

void Values(const std::int32_t* centres, const std::uint8_t* fine, std::int32_t half, int channels, const float* steps,
            float* row) {
  const Floats d;
  const Integers i;
  const Codes b;
  const int whole = VectorChannels(channels);
  for (int c = 0; c < whole; c += kFloats) {
    const auto extra = hn::Add(hn::PromoteTo(i, hn::LoadU(b, fine + c)), hn::Set(i, half));
    const auto centre = hn::ConvertTo(d, hn::Add(hn::LoadU(i, centres + c), extra));
    hn::StoreU(hn::Mul(centre, hn::LoadU(d, steps + c)), d, row + c);
  }
  for (int c = whole; c < channels; ++c) row[c] = LynxValueOf(centres[c] + fine[c] + half, steps[c]);
}

}  // namespace

extern const LynxKernels kLynxKernels;
constinit const LynxKernels kLynxKernels = {EncodePage,    DecodePage, Widen,         Narrow,  Turn<false>,
                                            Turn<true>,    Spreads,    Magnitudes,    Cells,   CellSums,
                                            CellDistances, Split,      FindOutermost, Centres, Values};

}  // namespace lynx::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
