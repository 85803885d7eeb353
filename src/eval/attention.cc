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

std::span<const float> Row(const std::vector<float>& rows, const LayerShape& dims, int dim, int token, int kv_head) {
  const std::size_t row = std::size_t(token) * std::size_t(dims.kv_heads) + std::size_t(kv_head);
  return std::span(rows).subspan(row * std::size_t(dim), std::size_t(dim));
}

}  // namespace

LayerAttention::LayerAttention(const CacheBlock& block, int layer)
    : dims_(block.shape().layers[std::size_t(layer)]), keys_(ToFloats(block, layer, KvKind::kKey)) {
  if (dims_.value_dim > 0) values_ = ToFloats(block, layer, KvKind::kValue);
}

void LayerAttention::Weigh(std::span<const float> query, int kv_head, std::span<float> weights) const {
  const float scale = 1.0f / std::sqrt(float(dims_.key_dim));
  float largest = -INFINITY;
  for (std::size_t token = 0; token < weights.size(); ++token) {
    const std::span<const float> key = Row(keys_, dims_, dims_.key_dim, int(token), kv_head);
    float sum = 0;
    for (std::size_t c = 0; c < key.size(); ++c) sum += query[c] * key[c];
    weights[token] = sum * scale;
    largest = std::max(largest, weights[token]);
  }
  double total = 0;
  for (float& weight : weights) total += weight = std::exp(weight - largest);
  for (float& weight : weights) weight = float(weight / total);
}

void LayerAttention::Mix(std::span<const float> weights, int kv_head, std::span<float> output) const {
  std::fill(output.begin(), output.end(), 0.0f);
  for (std::size_t token = 0; token < weights.size(); ++token) {
    const std::span<const float> value = Value(int(token), kv_head);
    for (std::size_t c = 0; c < value.size(); ++c) output[c] += weights[token] * value[c];
  }
}

std::span<const float> LayerAttention::Value(int token, int kv_head) const {
  return Row(values_, dims_, dims_.value_dim, token, kv_head);
}

std::vector<float> Attend(const CacheBlock& block, int layer, std::span<const float> queries, int query_heads) {
  const LayerShape& dims = block.shape().layers[std::size_t(layer)];
  LYNX_CHECK(dims.value_dim > 0 && query_heads > 0 && query_heads % dims.kv_heads == 0);
  const LayerAttention attention(block, layer);
  const auto key_dim = std::size_t(dims.key_dim), value_dim = std::size_t(dims.value_dim);
  const std::size_t count = queries.size() / key_dim;
  std::vector<float> output(count * value_dim);
  std::vector<float> weights(std::size_t(block.token_count()));
  for (std::size_t i = 0; i < count; ++i) {
    const int kv_head = int(i % std::size_t(query_heads)) / (query_heads / dims.kv_heads);
    attention.Weigh(queries.subspan(i * key_dim, key_dim), kv_head, weights);
    attention.Mix(weights, kv_head, std::span(output).subspan(i * value_dim, value_dim));
  }
  return output;
}

}  // namespace lynx
