// exp, log, sin and cos from IEEE basic operations alone: the same bits on every machine, where libm differs in the last one.
// Within 4 ulp of the true value.
#pragma once

#include <bit>
#include <cstdint>

namespace lynx {

// log of a positive, finite, normal number: x = m * 2^e with m in [1/sqrt(2), sqrt(2)), log m = 2 atanh((m - 1)/(m +
// 1)).
constexpr double PortableLog(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = int(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;  // at most 0.0295: the first term left out is below 2^-56 of the sum
  double sum = 1.0 / 21;
  for (int k = 19; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  // ln 2 in two parts; the first has 20 trailing zero bits, so its product with the exponent is exact.
  return exponent * 0x1.62e42fefp-1 + (2.0 * s * sum + exponent * 0x1.473de6af278edp-34);
}

// exp of x in [-700, 700]; 0 below, the value at 700 above. x = k ln 2 + r with |r| <= ln 2 / 2, Taylor series in r.
inline double PortableExp(double x) {
  if (!(x >= -700.0)) return 0.0;
  if (x > 700.0) x = 700.0;
  const double shifted = x * 0x1.71547652b82fep0 + 0x1.8p52;  // rounds to k, which lands in the low bits
  const double k = shifted - 0x1.8p52;
  const double r = (x - k * 0x1.62e42fefp-1) - k * 0x1.473de6af278edp-34;
  // Up to r^13 / 13!, the first term left out is below 2^-57 of the sum; by pairs, so that few steps wait for others.
  const double r2 = r * r, r4 = r2 * r2;
  const double low = (1.0 + r) + (1.0 / 2 + r * (1.0 / 6)) * r2;
  const double middle = (1.0 / 24 + r * (1.0 / 120)) + (1.0 / 720 + r * (1.0 / 5040)) * r2;
  const double high = (1.0 / 40320 + r * (1.0 / 362880)) + (1.0 / 3628800 + r * (1.0 / 39916800)) * r2;
  const double top = 1.0 / 479001600 + r * (1.0 / 6227020800);
  const double sum = low + (middle + (high + top * r4) * r4) * r4;
  return sum * std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023u) << 52);
}

// sin and cos of |x| <= 2^20, within 2^-50. x = k pi/2 + r with |r| <= pi/4, Taylor series in r.
inline void PortableSinCos(double x, double* sine, double* cosine) {
  const double shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52;  // rounds to k, which lands in the low bits
  const double k = shifted - 0x1.8p52;
  // pi/2 in two parts; the first has 20 trailing zero bits, so its product with k is exact.
  const double r = (x - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34;
  const double z = r * r;  // at most 0.617: the first terms left out are below 2^-53
  double s = 1.0, c = 1.0;
  for (int i = 17; i >= 3; i -= 2) s = 1.0 - s * z / (i * (i - 1));
  for (int i = 18; i >= 2; i -= 2) c = 1.0 - c * z / (i * (i - 1));
  s *= r;
  const auto quarter = std::bit_cast<std::uint64_t>(shifted) & 3u;
  *sine = (quarter & 1u) != 0 ? c : s;
  *cosine = (quarter & 1u) != 0 ? s : c;
  if ((quarter & 2u) != 0) *sine = -*sine;
  if (quarter == 1u || quarter == 2u) *cosine = -*cosine;
}

}  // namespace lynx
