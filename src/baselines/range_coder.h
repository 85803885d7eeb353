// An arithmetic coder (the byte-wise range coder with carry of LZMA, after G. N. N. Martin, 1979) and an adaptive
// model.
#pragma once

#include <cstdint>

#include "codec/bit_io.h"
#include "codec/page_codec.h"

namespace lynx {

// Symbols are intervals [first, first + width) of [0, total), total at most 2^16.
inline constexpr std::uint32_t kMaxTotal = 1u << 16;

class RangeEncoder {
 public:
  explicit RangeEncoder(BitWriter* out) : out_(out) {}
  void Put(std::uint32_t first, std::uint32_t width, std::uint32_t total);
  // After the last symbol.
  void Finish();

 private:
  void ShiftLow();

  BitWriter* out_;
  std::uint64_t low_ = 0;
  std::uint32_t range_ = 0xffffffffu;
  std::uint8_t held_ = 0;   // a byte that a carry may still change,
  std::uint64_t more_ = 0;  // and how many 0xff follow it
  bool first_ = true;       // the first byte is always 0 and not written
};

class RangeDecoder {
 public:
  explicit RangeDecoder(BitReader* in);
  // A number inside the next symbol's interval, below total; then Take with that interval.
  std::uint32_t Peek(std::uint32_t total);
  void Take(std::uint32_t first, std::uint32_t width);

 private:
  BitReader* in_;
  std::uint32_t code_ = 0;
  std::uint32_t range_ = 0xffffffffu;
};

// Symbol frequencies that follow what was coded: of each context by itself, and of all contexts together, which stand
// in for a context until it has seen enough. Encoder and decoder learn the same.
class AdaptiveModel {
 public:
  // Contexts are seen 256 times each at most: that keeps totals below kMaxTotal. symbols: 2…256.
  AdaptiveModel(int contexts, int symbols, Scratch* scratch);
  static std::size_t WorkBytes(int contexts, int symbols);

  void Put(int context, int symbol, RangeEncoder* out);
  int Get(int context, RangeDecoder* in);

 private:
  std::uint32_t FrequencyOf(const std::uint16_t* own, int symbol) const {
    return 1u + own[symbol] + (shared_[symbol] >> kSharedShift);
  }
  void Learn(int context, int symbol);

  static constexpr int kSharedShift = 3;
  int symbols_;
  std::uint16_t* own_;     // [context][symbol]
  std::uint32_t* shared_;  // [symbol]
  std::uint32_t shared_total_ = 0;
};

}  // namespace lynx
