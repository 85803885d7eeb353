// Interleaved range ANS (Duda, arXiv 1311.2540; interleaving: Giesen, arXiv 1402.3392) over pages of symbols: 32-bit
// states, renormalised by 16-bit words, 12-bit probabilities.
//
// Channels come in blocks of 32; lane l of a block is its channel l, so a lane's table stays the same for all tokens.
// Decoding goes block by block, token by token, lane by lane; a lane whose state falls below 2^16 takes the next word.
// Lanes of a narrow last block that have no channel rest. Every lane starts, seen from the encoder, with 16 bits of
// other data below its leading one; the decoder gets them back in the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/lynx_tables.h"
#include "lynx/result.h"

namespace lynx {

inline constexpr int kRansLanes = 32;
inline constexpr int kRansSlackWords = 8;  // before the words, that an encoder may write to
constexpr int RansLanesOf(int channels) { return channels < kRansLanes ? channels : kRansLanes; }

// One step of a lane: takes a symbol from its state. A state that is then below kRansLeastState takes a word.
inline constexpr std::uint32_t kRansLeastState = 1u << 16;
constexpr std::uint8_t RansTake(const LynxTable& table, std::uint32_t* state) {
  const std::uint32_t slot = *state & ((1u << kLynxProbabilityBits) - 1u);
  const std::uint8_t symbol = table.symbol[slot];
  *state = std::uint32_t(table.Frequency(symbol)) * (*state >> kLynxProbabilityBits) + slot - table.cumulative[symbol];
  return symbol;
}
constexpr std::uint32_t RansRefill(std::uint32_t state, std::uint16_t word) { return state << 16 | word; }
// The inverse: a symbol goes into a state, which first gives its low 16 bits away as a word where it is too large.
constexpr bool RansSpills(const LynxTable& table, std::uint8_t symbol, std::uint32_t state) {
  return state >= std::uint32_t(table.Frequency(symbol)) << (32 - kLynxProbabilityBits);
}
constexpr void RansPut(const LynxTable& table, std::uint8_t symbol, std::uint32_t* state) {
  const auto frequency = std::uint32_t(table.Frequency(symbol));
  *state = (*state / frequency << kLynxProbabilityBits) + *state % frequency + table.cumulative[symbol];
}

struct RansPage {
  int tokens = 0;
  int channels = 0;
  const LynxTable* const* tables = nullptr;  // one per channel
};

using RansStates = std::array<std::uint32_t, kRansLanes>;

// Symbols [token][channel], each below kLynxSymbols. `carried` holds 16 bits per lane. Words (one per symbol at most)
// are written so that they end at words_end, and up to kRansSlackWords before them; returns their first one. *states is
// what the decoder starts with.
std::uint16_t* RansEncode(const RansPage& page, const std::uint8_t* symbols, std::span<const std::uint16_t> carried,
                          std::uint16_t* words_end, RansStates* states);

// The inverse: the words lie little-endian in `words`; *used tells how many were taken. kCorrupt when a state is
// impossible or words run out. Whatever the input, every symbol written is below kLynxSymbols.
Status RansDecode(const RansPage& page, RansStates states, std::span<const std::byte> words, std::uint8_t* symbols,
                  std::span<std::uint16_t> carried, std::size_t* used);

// Their parts, for kernels that do blocks in other ways. A block is the channels [first, first + 32) of a page.
void RansBegin(std::span<const std::uint16_t> carried, RansStates* states);
void RansEncodeBlock(const RansPage& page, int first, const std::uint8_t* symbols, RansStates* states,
                     std::uint16_t** word);
Status RansCheckStates(const RansPage& page, const RansStates& states);
// From the words [*word, end).
Status RansDecodeBlock(const RansPage& page, int first, std::uint8_t* symbols, RansStates* states,
                       const std::byte** word, const std::byte* end);
Status RansFinish(const RansPage& page, const RansStates& states, std::span<std::uint16_t> carried);

}  // namespace lynx
