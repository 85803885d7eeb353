// What attention reads from a cache, computed outside the engine: the yardstick's own plain attention.
#pragma once

#include <span>
#include <vector>

#include "lynx/engine.h"
#include "lynx/page.h"

namespace lynx {

// softmax(q K^T / sqrt(key_dim)) V over all tokens of the block, for one layer: queries [row][query head][key_dim] as
// attention used them; result [row][query head][value_dim]. The layer must have V.
std::vector<float> Attend(const CacheBlock& block, int layer, std::span<const float> queries, int query_heads);

}  // namespace lynx
