#include "eval/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/float16.h"

namespace lynx {
namespace {

// Rows of one layer and kind as floats, [token][channel].
std::vector<float> ToFloats(const CacheBlock& block, int layer, KvKind kind) {
  const auto rows = block.Rows(layer, kind);
  const ElementType type = block.shape().element_type;
  std::vector<float> values(rows.size() / std::size_t(ElementBytes(type)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadElement(rows.data() + i * std::size_t(ElementBytes(type)), type);
  }
  return values;
}

}  // namespace

std::vector<float> Attend(const CacheBlock& block, int layer, std::span<const float> queries, int query_heads) {
  const LayerShape& dims = block.shape().layers[std::size_t(layer)];
  LYNX_CHECK(dims.value_dim > 0 && query_heads > 0 && query_heads % dims.kv_heads == 0);
  const auto key_dim = std::size_t(dims.key_dim);
  const auto value_dim = std::size_t(dims.value_dim);
  const auto tokens = std::size_t(block.token_count());
  const std::vector<float> keys = ToFloats(block, layer, KvKind::kKey);
  const std::vector<float> values = ToFloats(block, layer, KvKind::kValue);
  const std::size_t rows = queries.size() / (std::size_t(query_heads) * key_dim);
  const std::size_t group = std::size_t(query_heads / dims.kv_heads);
  const float scale = 1.0f / std::sqrt(float(key_dim));
  std::vector<float> output(rows * std::size_t(query_heads) * value_dim);
  std::vector<float> weights(tokens);
  for (std::size_t i = 0; i < rows * std::size_t(query_heads); ++i) {
    const float* query = queries.data() + i * key_dim;
    const std::size_t kv_head = i % std::size_t(query_heads) / group;
    float largest = -INFINITY;
    for (std::size_t token = 0; token < tokens; ++token) {
      const float* key = keys.data() + (token * std::size_t(dims.kv_heads) + kv_head) * key_dim;
      float sum = 0;
      for (std::size_t c = 0; c < key_dim; ++c) sum += query[c] * key[c];
      weights[token] = sum * scale;
      largest = std::max(largest, weights[token]);
    }
    double total = 0;
    for (float& weight : weights) total += weight = std::exp(weight - largest);
    float* out = output.data() + i * value_dim;
    for (std::size_t token = 0; token < tokens; ++token) {
      const float weight = float(weights[token] / total);
      const float* value = values.data() + (token * std::size_t(dims.kv_heads) + kv_head) * value_dim;
      for (std::size_t c = 0; c < value_dim; ++c) out[c] += weight * value[c];
    }
  }
  return output;
}

}  // namespace lynx
