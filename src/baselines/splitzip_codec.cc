#include "baselines/splitzip_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "baselines/numbers.h"
#include "baselines/range_coder.h"

namespace lynx {
namespace {

constexpr int kExponents = 256;
constexpr int kFrequencyBits = 15;
constexpr std::uint32_t kTotal = 1u << kFrequencyBits;
constexpr int kCodes = 16;

using Table = std::array<std::uint32_t, kExponents>;

int ExponentOf(float value) { return FloatToBf16(value) >> 7 & 0xff; }

// Sign and mantissa.
std::uint32_t RestOf(float value) {
  const std::uint32_t bits = FloatToBf16(value);
  return (bits >> 8 & 0x80u) | (bits & 0x7fu);
}
float Join(int exponent, std::uint32_t rest) {
  return Bf16ToFloat(std::uint16_t((rest & 0x80u) << 8 | std::uint32_t(exponent) << 7 | (rest & 0x7fu)));
}

Table Count(const float* values, std::size_t elements) {
  Table counts{};
  for (std::size_t i = 0; i < elements; ++i) ++counts[std::size_t(ExponentOf(values[i]))];
  return counts;
}

// Counts become frequencies that sum up to kTotal, none of a present exponent 0.
void Scale(std::size_t elements, Table* table) {
  std::uint32_t left = kTotal;
  for (std::uint32_t& count : *table) {
    if (count == 0) continue;
    count = 1u + std::uint32_t(std::uint64_t{count} * (kTotal - kExponents) / elements);
    left -= count;
  }
  *std::max_element(table->begin(), table->end()) += left;
}

Table FirstSlots(const Table& frequencies) {
  Table first{};
  std::exclusive_scan(frequencies.begin(), frequencies.end(), first.begin(), 0u);
  return first;
}

void PutTable(const Table& frequencies, BitWriter* out) {
  out->Put(std::uint32_t(std::count_if(frequencies.begin(), frequencies.end(), [](auto f) { return f > 0; })), 9);
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    if (frequencies[std::size_t(exponent)] == 0) continue;
    out->Put(std::uint32_t(exponent), 8);
    out->Put(frequencies[std::size_t(exponent)], kFrequencyBits + 1);
  }
}

bool GetTable(BitReader* in, Table* frequencies) {
  frequencies->fill(0);
  const auto count = in->Get(9);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto exponent = in->Get(8);
    (*frequencies)[exponent] = in->Get(kFrequencyBits + 1);
  }
  return std::accumulate(frequencies->begin(), frequencies->end(), 0u) == kTotal;
}

// The commonest exponents; of equally common ones the least.
std::array<int, kCodes> Commonest(const Table& counts) {
  std::array<int, kExponents> order;
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + kCodes, order.end(), [&](int a, int b) {
    return std::pair(counts[std::size_t(b)], a) < std::pair(counts[std::size_t(a)], b);
  });
  std::array<int, kCodes> codes;
  std::copy_n(order.begin(), kCodes, codes.begin());
  return codes;
}

int PositionBits(std::size_t elements) { return std::bit_width(elements - 1); }

void WriteFixed(const float* values, std::size_t elements, BitWriter* out) {
  const auto codes = Commonest(Count(values, elements));
  std::array<std::uint8_t, kExponents> code_of;
  code_of.fill(kCodes);
  for (int i = 0; i < kCodes; ++i) {
    out->Put(std::uint32_t(codes[std::size_t(i)]), 8);
    code_of[std::size_t(codes[std::size_t(i)])] = std::uint8_t(i);
  }
  std::uint32_t others = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    const int code = code_of[std::size_t(ExponentOf(values[i]))];
    others += code == kCodes ? 1 : 0;
    out->Put(std::uint32_t(code % kCodes), 4);
  }
  out->Put(others, 32);
  for (std::size_t i = 0; i < elements; ++i) {
    const int exponent = ExponentOf(values[i]);
    if (code_of[std::size_t(exponent)] != kCodes) continue;
    out->Put(std::uint32_t(i), PositionBits(elements));
    out->Put(std::uint32_t(exponent), 8);
  }
}

bool ReadFixed(BitReader* in, std::size_t elements, std::uint8_t* exponents) {
  std::array<std::uint8_t, kCodes> codes;
  for (std::uint8_t& code : codes) code = std::uint8_t(in->Get(8));
  for (std::size_t i = 0; i < elements; ++i) exponents[i] = codes[in->Get(4)];
  const std::uint32_t others = in->Get(32);
  for (std::uint32_t k = 0; k < others && in->ok(); ++k) {
    const std::size_t at = in->Get(PositionBits(elements));
    if (at >= elements) return false;
    exponents[at] = std::uint8_t(in->Get(8));
  }
  return true;
}

}  // namespace

SplitZipCodec::SplitZipCodec(const std::string& spec, const CacheShape& shape, bool entropy)
    : BaselineCodec(spec, CodecId::kSplitZip, shape), entropy_(entropy) {}

std::size_t SplitZipCodec::PageWorkBytes(const PageDims& dims) const {
  return Scratch::BytesFor<std::uint8_t>(dims.elements());
}

// Exponents, then sign and mantissa of every element.
void SplitZipCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch) const {
  BitWriter* out = &streams[0];
  if (entropy_) {
    Table frequencies = Count(values, dims.elements());
    Scale(dims.elements(), &frequencies);
    const Table first = FirstSlots(frequencies);
    PutTable(frequencies, out);
    RangeEncoder coder(out);
    for (std::size_t i = 0; i < dims.elements(); ++i) {
      const auto exponent = std::size_t(ExponentOf(values[i]));
      coder.Put(first[exponent], frequencies[exponent], kTotal);
    }
    coder.Finish();
  } else {
    WriteFixed(values, dims.elements(), out);
  }
  for (std::size_t i = 0; i < dims.elements(); ++i) out->Put(RestOf(values[i]), 8);
}

bool SplitZipCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const {
  BitReader* in = &streams[0];
  auto* exponents = scratch.Take<std::uint8_t>(dims.elements());
  if (entropy_) {
    Table frequencies;
    if (!GetTable(in, &frequencies)) return false;
    const Table first = FirstSlots(frequencies);
    RangeDecoder coder(in);
    for (std::size_t i = 0; i < dims.elements(); ++i) {
      // The last exponent that begins at or before the slot; those of frequency 0 end where they begin.
      const auto above = std::upper_bound(first.begin(), first.end(), coder.Peek(kTotal));
      const auto exponent = std::size_t(above - first.begin()) - 1;
      coder.Take(first[exponent], frequencies[exponent]);
      exponents[i] = std::uint8_t(exponent);
    }
  } else if (!ReadFixed(in, dims.elements(), exponents)) {
    return false;
  }
  for (std::size_t i = 0; i < dims.elements(); ++i) values[i] = Join(exponents[i], in->Get(8));
  return true;
}

}  // namespace lynx
