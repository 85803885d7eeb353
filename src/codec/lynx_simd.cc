// The `lynx` kernels with Highway, one source for every target. Rows are handled a vector of channels at a time; what
// is left of a row is done element by element by the definitions of lynx_reference.h.
#include "codec/lynx_kernels.h"

#include "codec/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/lynx_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "codec/lynx_reference.h"
#include "codec/page_codec.h"
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
  for (int t = 0; t < tokens; ++t, rows += channels) {
    auto* row = RowAs<std::uint16_t>(to, t, 0);
    int c = StreamValues(
        channels, [&](int at) HWY_ATTR { return LoadValues(rows + at); }, row);
    for (; c < channels; ++c) StoreValue(rows[c], row + c);
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

// Calls strip(vectors, c) for strips of `vectors` vectors of channels from channel c on. Wide ones: rows are often a
// power of two apart, and narrow strips of them would share few lines of the first-level cache.
template <typename Strip>
void ForStrips(int whole, Strip strip) {
  int c = 0;
  for (; c + 4 * kFloats <= whole; c += 4 * kFloats) strip(std::integral_constant<int, 4>(), c);
  for (; c < whole; c += kFloats) strip(std::integral_constant<int, 1>(), c);
}

// to[c] = the sum, in the order of the tokens, of term(row value, c) over rows of T.
template <typename D, typename VectorTerm, typename T>
void SumUp(D d, const T* rows, int tokens, int channels, VectorTerm term, T* to) {
  ForStrips(VectorChannels(channels), [&](auto vectors, int c) HWY_ATTR {
    hn::Vec<D> sums[vectors()];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (int t = 0; t < tokens; ++t) {
      const T* row = rows + std::size_t(t) * std::size_t(channels) + c;
      for (int v = 0; v < vectors(); ++v) {
        sums[v] = hn::Add(sums[v], term(hn::LoadU(d, row + v * kFloats), c + v * kFloats));
      }
    }
    for (int v = 0; v < vectors(); ++v) hn::StoreU(sums[v], d, to + c + v * kFloats);
  });
}

void Spreads(const float* rows, int tokens, int channels, float* spreads) {
  const Floats d;
  const auto count = hn::Set(d, float(tokens));
  const int whole = VectorChannels(channels);
  SumUp(
      d, rows, tokens, channels, [](auto value, int) HWY_ATTR { return value; }, spreads);
  float means[kMaxPageChannels];
  for (int c = 0; c < whole; c += kFloats) hn::StoreU(hn::Div(hn::LoadU(d, spreads + c), count), d, means + c);
  SumUp(
      d, rows, tokens, channels,
      [&](auto value, int c) HWY_ATTR { return hn::Abs(hn::Sub(value, hn::LoadU(d, means + c))); }, spreads);
  for (int c = 0; c < whole; c += kFloats) hn::StoreU(hn::Div(hn::LoadU(d, spreads + c), count), d, spreads + c);
  for (int c = whole; c < channels; ++c) spreads[c] = LynxSpreadOf(rows + c, tokens, std::size_t(channels));
}

void Magnitudes(const float* rows, int tokens, int channels, float* greatest) {
  const Floats d;
  const int whole = VectorChannels(channels);
  std::fill_n(greatest, channels, 0.0f);
  for (int t = 0; t < tokens; ++t, rows += channels) {
    for (int c = 0; c < whole; c += kFloats) {
      hn::StoreU(hn::Max(hn::LoadU(d, greatest + c), hn::Abs(hn::LoadU(d, rows + c))), d, greatest + c);
    }
    for (int c = whole; c < channels; ++c) greatest[c] = std::max(greatest[c], std::fabs(rows[c]));
  }
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

void CellSums(const std::int32_t* cells, int tokens, int channels, std::int32_t* sums) {
  SumUp(
      Integers(), cells, tokens, channels, [](auto cell, int) HWY_ATTR { return cell; }, sums);
  for (int c = VectorChannels(channels); c < channels; ++c) {
    sums[c] = LynxCellSum(cells + c, tokens, std::size_t(channels));
  }
}

void CellDistances(const std::int32_t* cells, int tokens, int channels, const std::int32_t* means, std::int32_t* sums) {
  const Integers i;
  SumUp(
      i, cells, tokens, channels,
      [&](auto cell, int c) HWY_ATTR {
        const auto centre = hn::Add(hn::ShiftLeft<1>(cell), hn::Set(i, 1));
        return hn::Abs(hn::Sub(centre, hn::ShiftLeft<3>(hn::LoadU(i, means + c))));
      },
      sums);
  for (int c = VectorChannels(channels); c < channels; ++c) {
    sums[c] = LynxDistanceSum(cells + c, tokens, std::size_t(channels), means[c]);
  }
}

void Split(std::int32_t* cells, int tokens, int channels, const LynxChannels& of, std::uint8_t* symbols,
           std::uint8_t* residuals) {
  const Integers i;
  const Codes b;
  const auto outermost = hn::Set(i, kLynxOutermost);
  const int whole = VectorChannels(channels);
  for (int t = 0; t < tokens; ++t, cells += channels, symbols += channels, residuals += channels) {
    for (int c = 0; c < whole; c += kFloats) {
      const auto shift = hn::LoadU(i, of.shifts + c);
      const auto half = hn::ShiftRight<1>(hn::Shl(hn::Set(i, 1), shift));
      const auto centre = hn::Sub(hn::Set(i, 8), hn::ShiftLeft<2>(hn::LoadU(i, of.means + c)));
      const auto nested = hn::Add(hn::LoadU(i, cells + c), centre);
      hn::StoreU(nested, i, cells + c);
      const auto high = hn::Shr(hn::Add(hn::ShiftRight<kLynxResidualBits>(nested), half), shift);
      const auto bounded = hn::Max(hn::Min(high, outermost), hn::Neg(outermost));
      hn::StoreU(hn::DemoteTo(b, hn::Add(bounded, outermost)), b, symbols + c);
      hn::StoreU(hn::DemoteTo(b, hn::And(nested, hn::Set(i, 15))), b, residuals + c);
    }
    for (int c = whole; c < channels; ++c) {
      LynxSplit(&cells[c], of.means[c], of.shifts[c], &symbols[c], &residuals[c]);
    }
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
  for (int t = 0; t < tokens; ++t, symbols += channels, centres += channels) {
    for (int c = 0; c < whole; c += kFloats) {
      const auto shift = hn::LoadU(i, of.shifts + c);
      const auto unit = hn::Shl(hn::Set(i, 1), shift);
      const auto high = hn::Sub(hn::PromoteTo(i, hn::LoadU(b, symbols + c)), hn::Set(i, kLynxOutermost));
      const auto level = hn::Sub(hn::Shl(high, shift), hn::ShiftRight<1>(unit));
      const auto mean = hn::ShiftLeft<3>(hn::LoadU(i, of.means + c));
      hn::StoreU(hn::Add(hn::ShiftLeft<5>(level), hn::Sub(mean, hn::Set(i, 16))), i, centres + c);
    }
    for (int c = whole; c < channels; ++c) centres[c] = LynxCoarseCentre(symbols[c], of.shifts[c], of.means[c]);
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
