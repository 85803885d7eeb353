// How RoPE turned the K heads of a page, as the codec undoes and redoes it: angles relative to the page's first token.
// The angles need not equal the engine's, only be the same at both ends; a rotation common to the page changes nothing
// that a codec relies on, so no absolute position enters.
#pragma once

#include <cstddef>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

// kInvalid when the pairs lie outside the head, their number differs from the list of frequencies, or a frequency is
// not finite or above 4096 radians per token.
Status CheckRope(const RopeShape& rope, int head_dim);

// Turns the pair (first, second) by an angle, or (inverse) back.
constexpr void TurnRopePair(float* first, float* second, float cosine, float sine, bool inverse) {
  const float x = *first, y = *second;
  *first = inverse ? x * cosine + y * sine : x * cosine - y * sine;
  *second = inverse ? y * cosine - x * sine : x * sine + y * cosine;
}

class RopeTable {
 public:
  // For token indices 0 … tokens - 1 of a page. The shape has passed CheckRope.
  RopeTable(const RopeShape& rope, int tokens);

  // One pair of a head's channels, in place: what RoPE did to a token of this index, or (inverse) what it was before.
  void TurnPair(float* head, int token, int pair, bool inverse) const {
    float& first = head[offset_ + (adjacent_ ? 2 * pair : pair)];
    float& second = head[offset_ + (adjacent_ ? 2 * pair + 1 : pair + pairs_)];
    TurnRopePair(&first, &second, cosines(token)[pair], sines(token)[pair], inverse);
  }

  // All pairs.
  void Rotate(float* head, int token) const {
    for (int pair = 0; pair < pairs_; ++pair) TurnPair(head, token, pair, false);
  }
  void Unrotate(float* head, int token) const {
    for (int pair = 0; pair < pairs_; ++pair) TurnPair(head, token, pair, true);
  }

  int pairs() const { return pairs_; }
  // Pair i is channels offset + 2 i and the one behind it; else offset + i and that + pairs.
  bool adjacent() const { return adjacent_; }
  int offset() const { return offset_; }
  // One per pair.
  const float* cosines(int token) const { return cosines_.data() + std::size_t(token) * std::size_t(pairs_); }
  const float* sines(int token) const { return sines_.data() + std::size_t(token) * std::size_t(pairs_); }

 private:
  int pairs_ = 0;
  bool adjacent_ = false;
  int offset_ = 0;
  std::vector<float> cosines_, sines_;  // [token][pair]
};

// The tables of the layers of a cache; layers of the same shape share one.
class RopeTables {
 public:
  // For pages of up to `tokens`.
  RopeTables(const CacheShape& shape, int tokens);

  // Null for V and for layers without RoPE.
  const RopeTable* Of(const PageAddress& address) const;

 private:
  std::vector<RopeTable> tables_;
  std::vector<int> of_layer_;  // -1: none
};

}  // namespace lynx
