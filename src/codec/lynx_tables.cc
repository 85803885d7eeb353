#include "codec/lynx_tables.h"

#include <bit>

#include "base/portable_math.h"

namespace lynx {
namespace {

// 2^(k / 8).
constexpr double kEighths[8] = {1.0,
                                1.0905077326652577,
                                1.189207115002721,
                                1.2968395546510096,
                                1.4142135623730951,
                                1.5422108254079408,
                                1.681792830507429,
                                1.8340080864093424};

// A channel of a page is a mixture: this part normal, the rest Laplace, both of the same mean magnitude. Least rate on
// the caches of docs/codec.md §3.6.
constexpr double kNormalShare = 0.9;

double PowerOfTwo(int exponent) { return std::bit_cast<double>(std::uint64_t(1023 + exponent) << 52); }
double EighthOctaveExactly(int eighths) { return kEighths[eighths & 7] * PowerOfTwo(eighths >> 3); }

// The probability of [x, infinity), x >= 0, at mean magnitude 1.
double LaplaceTail(double x) { return 0.5 * PortableExp(-x); }
// At mean magnitude 1 sigma is sqrt(pi / 2): the density is exp(-x^2 / pi) / pi. Simpson's rule; what lies behind 16 is
// below 10^-36.
double NormalTail(double x) {
  if (x >= 16.0) return 0.0;
  constexpr int kIntervals = 512;
  const double width = (16.0 - x) / kIntervals;
  double sum = 0.0;
  for (int i = 0; i <= kIntervals; ++i) {
    const double at = x + i * width;
    const double weight = i == 0 || i == kIntervals ? 1.0 : (i % 2 == 1 ? 4.0 : 2.0);
    sum += weight * PortableExp(-at * at / 3.141592653589793);
  }
  return sum * width / (3.0 * 3.141592653589793);
}
double Tail(double x) { return kNormalShare * NormalTail(x) + (1.0 - kNormalShare) * LaplaceTail(x); }

// Of levels 0 … levels.size() - 1 (the last: and all above) at this mean magnitude in steps; positive and negative ones
// are equally probable.
template <std::size_t count>
std::array<double, count> LevelProbabilities(double magnitude) {
  std::array<double, count> tails;  // above the lower edge of level i + 1
  for (std::size_t i = 0; i < count; ++i) tails[i] = Tail((double(i) + 0.5) / magnitude);
  std::array<double, count> probabilities;
  probabilities[0] = 1.0 - 2.0 * tails[0];
  for (std::size_t i = 1; i + 1 < count; ++i) probabilities[i] = tails[i - 1] - tails[i];
  probabilities[count - 1] = tails[count - 2];
  return probabilities;
}

LynxTable MakeTable(double magnitude) {
  const auto probabilities = LevelProbabilities<kLynxOutermost + 1>(magnitude);
  constexpr int kTotal = 1 << kLynxProbabilityBits;
  std::array<int, kLynxSymbols> frequencies;
  int left = kTotal;
  for (int symbol = 0; symbol < kLynxSymbols; ++symbol) {
    const int level = symbol < kLynxOutermost ? kLynxOutermost - symbol : symbol - kLynxOutermost;
    frequencies[std::size_t(symbol)] = 1 + int(probabilities[std::size_t(level)] * (kTotal - kLynxSymbols));
    left -= frequencies[std::size_t(symbol)];
  }
  frequencies[kLynxOutermost] += left;  // fractions that were cut off, at most one per symbol
  LynxTable table;
  table.cumulative[0] = 0;
  for (std::size_t symbol = 0; symbol < kLynxSymbols; ++symbol) {
    table.cumulative[symbol + 1] = std::uint16_t(table.cumulative[symbol] + frequencies[symbol]);
    for (int slot = table.cumulative[symbol]; slot < table.cumulative[symbol + 1]; ++slot) {
      table.symbol[std::size_t(slot)] = std::uint8_t(symbol);
    }
  }
  return table;
}

double Entropy(double magnitude) {
  constexpr double kLn2 = 0.6931471805599453;
  const auto probabilities = LevelProbabilities<512>(magnitude);
  double nats = 0.0;
  for (std::size_t level = 0; level < probabilities.size(); ++level) {
    const double p = probabilities[level];
    if (p > 1e-30) nats -= (level == 0 ? 1.0 : 2.0) * p * PortableLog(p);
  }
  return nats / kLn2;
}

}  // namespace

float EighthOctave(int eighths) { return float(EighthOctaveExactly(eighths)); }

const LynxTables& LynxTables::Get() {
  static const LynxTables tables;
  return tables;
}

LynxTables::LynxTables() {
  for (int table = 0; table < kLynxTables; ++table) {
    tables_[std::size_t(table)] = MakeTable(EighthOctaveExactly(2 * (table - kLynxUnitClass)));
  }
  for (int eighths = kLeastEighths; eighths <= kGreatestEighths; ++eighths) {
    bits_[std::size_t(eighths - kLeastEighths)] = Entropy(EighthOctaveExactly(eighths));
  }
}

}  // namespace lynx
