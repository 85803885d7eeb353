// The exact stream of `lynx`: which BF16 element lies in the cell that the other streams leave, docs/codec.md §3.5.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/rope_table.h"
#include "lynx/result.h"

namespace lynx {

inline constexpr int kLynxExactLanes = 4;
inline constexpr std::size_t kLynxExactStateBytes = 4 * kLynxExactLanes;
inline constexpr int kLynxExactSteps = 3;  // of the coder, per element at most

// What an element's candidates follow from, besides the value that all other streams give (RoPE included).
struct LynxExactPage {
  int channels = 0;
  int head_dim = 0;
  const RopeTable* rope = nullptr;    // null: not rotated
  const float* half_cells = nullptr;  // per channel, before rotation
};

class LynxExactEncoder {
 public:
  // Writes words into `words` from its end on. `steps` holds kLynxExactSteps per channel.
  LynxExactEncoder(const LynxExactPage& page, std::span<std::uint16_t> words, std::uint32_t* steps);
  // From the last row to the first; token: index in the page. False when the words are full.
  bool AddRow(int token, const float* values, std::uint16_t* elements);
  const std::array<std::uint32_t, kLynxExactLanes>& states() const { return states_; }
  std::span<const std::uint16_t> words() const { return words_.subspan(word_); }

 private:
  LynxExactPage page_;
  std::span<std::uint16_t> words_;
  std::size_t word_;  // the first written one
  std::uint32_t* steps_;
  std::array<std::uint32_t, kLynxExactLanes> states_;
};

// How far a decoder has come.
struct LynxExactPlace {
  std::array<std::uint32_t, kLynxExactLanes> states;
  std::span<const std::byte> words;  // not yet taken
  bool ok = true;
};

class LynxExactDecoder {
 public:
  LynxExactDecoder(const LynxExactPage& page, std::span<const std::byte> payload);
  // From the first row to the last. Whatever the payload, elements are finite.
  void GetRow(int token, const float* values, std::uint16_t* elements);
  // After the last row. kCorrupt when words ran out or are left, a state is impossible, or an element not finite.
  Status Finish() const;

 private:
  LynxExactPage page_;
  LynxExactPlace place_;
};

}  // namespace lynx
