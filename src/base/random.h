// Seeded, counter-based randomness: the same numbers on every machine.
#pragma once

#include <cstdint>

namespace lynx {

// A well-mixed 64-bit hash of 64 bits (the finalizer of splitmix64, Steele et al. 2014).
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform in (0, 1), 52 bits, never 0 or 1.
constexpr double ToUnit(std::uint64_t bits) { return (double(bits >> 12) + 0.5) * 0x1p-52; }

// A small generator for tests and seeds: state advances by one per draw.
class Random {
 public:
  explicit constexpr Random(std::uint64_t seed) : state_(Mix64(seed)) {}
  constexpr std::uint64_t Next() { return Mix64(state_++); }
  constexpr double Unit() { return ToUnit(Next()); }
  // Uniform in [0, bound), bound > 0 (bias below 2^-32 for bounds that fit 32 bits).
  constexpr std::uint64_t Below(std::uint64_t bound) { return Next() % bound; }

 private:
  std::uint64_t state_;
};

}  // namespace lynx
