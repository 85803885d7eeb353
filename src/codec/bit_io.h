// Bits, least significant first in each byte, and exponential Golomb codes of any order.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lynx {

inline std::uint32_t ZigZag(std::int32_t value) { return (std::uint32_t(value) << 1) ^ std::uint32_t(value >> 31); }
inline std::int32_t UnZigZag(std::uint32_t code) { return std::int32_t(code >> 1) ^ -std::int32_t(code & 1u); }

// Length of the code of `value` < 2^30 in bits.
inline int GolombBits(std::uint32_t value, int order) { return 2 * std::bit_width((value >> order) + 1u) - 1 + order; }

// Writes into memory of the caller; when it is full, further bits are lost and ok() is false.
class BitWriter {
 public:
  explicit BitWriter(std::span<std::byte> out) : out_(out) {}
  bool ok() const { return ok_; }
  // Complete bytes; after Finish all of them.
  std::size_t bytes() const { return at_; }

  // The low `count` <= 32 bits.
  void Put(std::uint32_t bits, int count) {
    window_ |= std::uint64_t(bits) << filled_;
    filled_ += count;
    for (; filled_ >= 8; filled_ -= 8, window_ >>= 8) PutByte();
  }
  // v = (value >> order) + 1 as (its length - 1) ones, a zero, and its bits below the first; then `order` low bits.
  void PutGolomb(std::uint32_t value, int order) {
    const std::uint32_t v = (value >> order) + 1u;
    const int extra = std::bit_width(v) - 1;
    Put((1u << extra) - 1u, extra + 1);
    Put(v & ((1u << extra) - 1u), extra);
    Put(value & ((1u << order) - 1u), order);
  }
  // Up to the next whole byte.
  void Finish() {
    if (filled_ > 0) PutByte();
    filled_ = 0;
    window_ = 0;
  }

 private:
  void PutByte() {
    if (at_ == out_.size()) {
      ok_ = false;
      return;
    }
    out_[at_++] = std::byte(window_ & 0xffu);
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
  explicit BitReader(std::span<const std::byte> first, std::span<const std::byte> second = {})
      : first_(first), second_(second) {}
  bool ok() const { return ok_; }
  // Bytes of which at least one bit was read, both stretches together.
  std::size_t bytes() const { return at_; }

  // count <= 32.
  std::uint32_t Get(int count) {
    for (; filled_ < count; filled_ += 8) window_ |= std::uint64_t(GetByte()) << filled_;
    const auto bits = std::uint32_t(window_ & ((std::uint64_t{1} << count) - 1u));
    window_ >>= count;
    filled_ -= count;
    return ok_ ? bits : 0;
  }
  // Up to the next whole byte.
  void SkipPadding() {
    window_ = 0;
    filled_ = 0;
  }
  // A value below 2^31.
  std::uint32_t GetGolomb(int order) {
    int extra = 0;
    while (Get(1) != 0) {
      if (++extra + order > 30) {
        ok_ = false;
        return 0;
      }
    }
    const std::uint32_t v = (1u << extra) | Get(extra);
    const std::uint32_t value = ((v - 1u) << order) | Get(order);
    return ok_ ? value : 0;
  }

 private:
  std::uint8_t GetByte() {
    const std::size_t at = at_++;
    if (at < first_.size()) return std::uint8_t(first_[at]);
    if (at - first_.size() < second_.size()) return std::uint8_t(second_[at - first_.size()]);
    ok_ = false;
    --at_;
    return 0;
  }
  std::span<const std::byte> first_, second_;
  std::size_t at_ = 0;
  std::uint64_t window_ = 0;
  int filled_ = 0;
  bool ok_ = true;
};

}  // namespace lynx
