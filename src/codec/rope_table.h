// How RoPE turned the K heads of a page, as the codec undoes and redoes it: angles relative to the page's first token.
// The angles need not equal the engine's, only be the same at both ends; a rotation common to the page changes nothing
// that a codec relies on, so no absolute position enters.
#pragma once

#include <utility>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

// kInvalid when the pairs lie outside the head, their number differs from the list of frequencies, or a frequency is
// not finite or above 4096 radians per token.
Status CheckRope(const RopeShape& rope, int head_dim);

class RopeTable {
 public:
  // For token indices 0 … tokens - 1 of a page. The shape has passed CheckRope.
  RopeTable(const RopeShape& rope, int tokens);

  // The channels of one head of a token, in place: what RoPE does, and its inverse.
  void Rotate(float* head, int token) const;
  void Unrotate(float* head, int token) const;

 private:
  std::vector<std::pair<int, int>> pairs_;
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
