// Bits, least significant first in each byte, and exponential Golomb codes of any order.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace lynx {

constexpr std::uint32_t ZigZag(std::int32_t value) { return (std::uint32_t(value) << 1) ^ std::uint32_t(value >> 31); }
constexpr std::int32_t UnZigZag(std::uint32_t code) { return std::int32_t(code >> 1) ^ -std::int32_t(code & 1u); }

// Length of the code of `value` < 2^30 in bits.
constexpr int GolombBits(std::uint32_t value, int order) {
  return 2 * int(std::bit_width((value >> order) + 1u)) - 1 + order;
}
// The order up to `greatest` that makes the codes of value_of(0) … value_of(count - 1) shortest, the lowest among
// equals. Orders above the length of the greatest value only make them longer.
template <typename ValueOf>
constexpr int BestGolombOrder(int count, int greatest, ValueOf value_of) {
  std::uint32_t all = 0;
  for (int i = 0; i < count; ++i) all |= value_of(i);
  const int last = std::min(int(std::bit_width(all)), greatest);
  int best = 0;
  std::int64_t least = INT64_MAX;
  for (int order = 0; order <= last; ++order) {
    std::int64_t bits = 0;
    for (int i = 0; i < count; ++i) bits += GolombBits(value_of(i), order);
    if (bits < least) least = bits, best = order;
  }
  return best;
}

// Writes into memory of the caller; when it is full, further bits are lost and ok() is false.
class BitWriter {
 public:
  constexpr explicit BitWriter(std::span<std::byte> out) : out_(out) {}
  constexpr bool ok() const { return ok_; }
  // After Finish: all of them.
  constexpr std::size_t bytes() const { return at_; }

  // The low `count` <= 32 bits; the others are 0.
  constexpr void Put(std::uint32_t bits, int count) {
    window_ |= std::uint64_t(bits) << filled_;
    filled_ += count;
    if (filled_ >= 32) Flush(4);
  }
  // v = (value >> order) + 1 as (its length - 1) ones, a zero, and its bits below the first; then `order` low bits.
  constexpr void PutGolomb(std::uint32_t value, int order) {
    const std::uint32_t v = (value >> order) + 1u;
    const int extra = int(std::bit_width(v)) - 1;
    Put((1u << extra) - 1u, extra + 1);
    Put(v & ((1u << extra) - 1u), extra);
    Put(value & ((1u << order) - 1u), order);
  }
  // Up to the next whole byte.
  constexpr void Finish() {
    if (filled_ > 0) Flush(std::size_t(filled_ + 7) / 8);
    filled_ = 0;
    window_ = 0;
  }

 private:
  constexpr void Flush(std::size_t count) {
    if (count > out_.size() - at_) {
      ok_ = false;
    } else {
      for (std::size_t i = 0; i < count; ++i) out_[at_ + i] = std::byte(window_ >> (8 * i) & 0xffu);
      at_ += count;
    }
    window_ >>= 8 * count;
    filled_ -= int(8 * count);
  }
  std::span<std::byte> out_;
  std::size_t at_ = 0;
  std::uint64_t window_ = 0;
  int filled_ = 0;
  bool ok_ = true;
};

// Reads two stretches of bytes, one after the other. After the first read past the end, or an impossible code, every
// read gives zero and ok() is false.
class BitReader {
 public:
  constexpr explicit BitReader(std::span<const std::byte> first, std::span<const std::byte> second = {})
      : bytes_(first), second_(second) {}
  constexpr bool ok() const { return ok_; }
  // Bytes of which at least one bit was read, both stretches together.
  constexpr std::size_t bytes() const { return at_ - std::size_t(filled_) / 8; }

  // count <= 32.
  constexpr std::uint32_t Get(int count) {
    if (filled_ < count) Refill();
    if (filled_ < count || !ok_) return Fail();
    const auto bits = std::uint32_t(window_ & ((std::uint64_t{1} << count) - 1u));
    Drop(count);
    return bits;
  }
  // Up to the next whole byte.
  constexpr void SkipPadding() { Drop(filled_ % 8); }
  // A value below 2^31.
  constexpr std::uint32_t GetGolomb(int order) {
    if (filled_ < 32) Refill();
    const int extra = std::countr_one(window_);  // above filled_ there are zeros
    if (extra + order > 30 || extra >= filled_ || !ok_) return Fail();
    Drop(extra + 1);
    const std::uint32_t v = (1u << extra) | Get(extra);
    const std::uint32_t value = ((v - 1u) << order) | Get(order);
    return ok_ ? value : 0;
  }

 private:
  constexpr std::uint32_t Fail() {
    ok_ = false;
    return 0;
  }
  constexpr void Drop(int count) {
    window_ >>= count;
    filled_ -= count;
  }
  // More than 56 bits, or all that there are.
  constexpr void Refill() {
    while (filled_ <= 56) {
      if (bytes_.empty()) {
        if (second_.empty()) return;
        std::swap(bytes_, second_);
      }
      window_ |= std::uint64_t(bytes_[0]) << filled_;
      bytes_ = bytes_.subspan(1);
      filled_ += 8;
      ++at_;
    }
  }
  std::span<const std::byte> bytes_, second_;
  std::size_t at_ = 0;
  std::uint64_t window_ = 0;
  int filled_ = 0;
  bool ok_ = true;
};

}  // namespace lynx
