#include "baselines/range_coder.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr std::uint32_t kLeastRange = 1u << 24;

// All contexts together weigh at most 2^15 / 2^3 = 4096: as much as 32 symbols of a context's own. They are halved at
// 2^15, so they remember the last one or two thousand symbols.
constexpr std::uint16_t kOwnStep = 128;
constexpr std::uint32_t kSharedStep = 16;
constexpr std::uint32_t kSharedLimit = 1u << 15;

}  // namespace

void RangeEncoder::Put(std::uint32_t first, std::uint32_t width, std::uint32_t total) {
  const std::uint32_t unit = range_ / total;
  low_ += std::uint64_t{unit} * first;
  range_ = unit * width;
  while (range_ < kLeastRange) {
    range_ <<= 8;
    ShiftLow();
  }
}

void RangeEncoder::Finish() {
  for (int i = 0; i < 5; ++i) ShiftLow();
}

// Moves the top byte out, once no carry can change it any more.
void RangeEncoder::ShiftLow() {
  if (low_ < 0xff000000u || low_ > 0xffffffffu) {
    const auto carry = std::uint8_t(low_ >> 32);
    if (!first_) out_->Put(std::uint8_t(held_ + carry), 8);
    for (; more_ > 0; --more_) out_->Put(std::uint8_t(0xff + carry), 8);
    first_ = false;
    held_ = std::uint8_t(low_ >> 24);
  } else {
    ++more_;
  }
  low_ = (low_ & 0x00ffffffu) << 8;
}

RangeDecoder::RangeDecoder(BitReader* in) : in_(in) {
  for (int i = 0; i < 4; ++i) code_ = code_ << 8 | in_->Get(8);
}

std::uint32_t RangeDecoder::Peek(std::uint32_t total) {
  range_ /= total;
  return std::min(code_ / range_, total - 1);
}

void RangeDecoder::Take(std::uint32_t first, std::uint32_t width) {
  code_ -= first * range_;
  range_ *= width;
  while (range_ < kLeastRange) {
    range_ <<= 8;
    code_ = code_ << 8 | in_->Get(8);
  }
}

AdaptiveModel::AdaptiveModel(int contexts, int symbols, Scratch* scratch) : symbols_(symbols) {
  const std::size_t count = std::size_t(contexts) * std::size_t(symbols);
  own_ = scratch->Take<std::uint16_t>(count);
  shared_ = scratch->Take<std::uint32_t>(std::size_t(symbols));
  std::fill_n(own_, count, std::uint16_t{0});
  std::fill_n(shared_, symbols, 0u);
}

std::size_t AdaptiveModel::WorkBytes(int contexts, int symbols) {
  return Scratch::BytesFor<std::uint16_t>(std::size_t(contexts) * std::size_t(symbols)) +
         Scratch::BytesFor<std::uint32_t>(std::size_t(symbols));
}

void AdaptiveModel::Put(int context, int symbol, RangeEncoder* out) {
  const std::uint16_t* own = own_ + std::size_t(context) * std::size_t(symbols_);
  std::uint32_t first = 0, total = 0;
  for (int s = 0; s < symbol; ++s) first += FrequencyOf(own, s);
  for (int s = symbol; s < symbols_; ++s) total += FrequencyOf(own, s);
  out->Put(first, FrequencyOf(own, symbol), first + total);
  Learn(context, symbol);
}

int AdaptiveModel::Get(int context, RangeDecoder* in) {
  const std::uint16_t* own = own_ + std::size_t(context) * std::size_t(symbols_);
  std::uint32_t total = 0;
  for (int s = 0; s < symbols_; ++s) total += FrequencyOf(own, s);
  const std::uint32_t at = in->Peek(total);
  int symbol = 0;
  std::uint32_t first = 0;
  for (std::uint32_t width; first + (width = FrequencyOf(own, symbol)) <= at; ++symbol) first += width;
  in->Take(first, FrequencyOf(own, symbol));
  Learn(context, symbol);
  return symbol;
}

void AdaptiveModel::Learn(int context, int symbol) {
  own_[std::size_t(context) * std::size_t(symbols_) + std::size_t(symbol)] += kOwnStep;
  shared_[symbol] += kSharedStep;
  shared_total_ += kSharedStep;
  if (shared_total_ < kSharedLimit) return;
  shared_total_ = 0;
  for (int s = 0; s < symbols_; ++s) shared_total_ += shared_[s] -= shared_[s] / 2;
}

}  // namespace lynx
