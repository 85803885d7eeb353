// The arithmetic of the toy engine: weights, one token forward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/toy/toy_engine.h"

namespace lynx {

// The cache of one sequence and layer: rows of kv_heads * head_dim floats that are exact in the element type. Without V
// the second is empty.
struct ToyCache {
  std::vector<float> key;
  std::vector<float> value;
};

class ToyModel {
 public:
  explicit ToyModel(const ToyOptions& options);

  const CacheShape& shape() const { return shape_; }
  // Appends one token at `position` to the caches (one per layer, holding `position` rows). Fills `logits` (vocab
  // values) unless empty.
  void Forward(Token token, int position, std::span<ToyCache> caches, std::span<float> logits) const;

 private:
  // Row-major [inputs][outputs].
  using Matrix = std::vector<float>;
  struct Layer {
    Matrix query, key, value, output, up, down;
  };

  void Attend(const Layer& layer, const ToyCache& cache, int tokens, std::span<const float> query,
              std::span<float> mixed) const;
  void Rotate(std::span<float> heads, int position) const;
  void AppendRounded(std::span<const float> values, std::vector<float>* rows) const;

  ToyOptions options_;
  CacheShape shape_;
  int width_;
  Matrix embedding_;  // [vocab][width]
  Matrix unembedding_;
  std::vector<Layer> layers_;
  std::vector<float> cosines_, sines_;  // [position][head_dim / 2]
};

}  // namespace lynx
