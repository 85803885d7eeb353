// What attention reads from a cache, computed outside the engine: the yardstick's own plain attention.
#pragma once

#include <span>
#include <vector>

#include "lynx/engine.h"
#include "lynx/page.h"

namespace lynx {

// One layer's rows as floats.
class LayerAttention {
 public:
  LayerAttention(const CacheBlock& block, int layer);

  // softmax(q K^T / sqrt(key_dim)) of one query over the first weights.size() tokens of the block.
  void Weigh(std::span<const float> query, int kv_head, std::span<float> weights) const;
  // The values of the first weights.size() tokens by these weights: value_dim sums. The layer must have V.
  void Mix(std::span<const float> weights, int kv_head, std::span<float> output) const;
  // value_dim numbers; empty when the layer has no V.
  std::span<const float> Value(int token, int kv_head) const;

 private:
  LayerShape dims_;
  std::vector<float> keys_, values_;  // [token][KV head][channel]
};

// softmax(q K^T / sqrt(key_dim)) V over all tokens of the block, for one layer: queries [row][query head][key_dim] as
// attention used them; result [row][query head][value_dim]. The layer must have V.
std::vector<float> Attend(const CacheBlock& block, int layer, std::span<const float> queries, int query_heads);

}  // namespace lynx
