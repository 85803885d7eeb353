// A pre-norm transformer: RMS norm, grouped-query attention in position order, an MLP with SiLU. Products go
// input by input over all outputs, so the order of every sum is fixed and the compiler may still use vectors.
#include "engine/toy/toy_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/float16.h"
#include "base/portable_math.h"
#include "base/random.h"

namespace lynx {
namespace {

// Uniform with variance gain² / inputs.
std::vector<float> RandomMatrix(int inputs, int outputs, float gain, Random* random) {
  const float scale = gain * std::sqrt(12.0f / float(inputs));
  std::vector<float> matrix(std::size_t(inputs) * outputs);
  for (float& weight : matrix) weight = (float(random->Unit()) - 0.5f) * scale;
  return matrix;
}

// out += in · matrix.
void AddProduct(std::span<const float> in, const std::vector<float>& matrix, std::span<float> out) {
  const float* weights = matrix.data();
  for (float x : in) {
    for (std::size_t j = 0; j < out.size(); ++j) out[j] += x * weights[j];
    weights += out.size();
  }
}

std::vector<float> Normed(std::span<const float> x) {
  float squares = 0;
  for (float value : x) squares += value * value;
  const float inverse = 1.0f / std::sqrt(squares / float(x.size()) + 1e-5f);
  std::vector<float> normed(x.begin(), x.end());
  for (float& value : normed) value *= inverse;
  return normed;
}

// cos and sin of an angle in [0, 1], Taylor series.
std::pair<double, double> CosSin(double angle) {
  double term = 1, cosine = 0, sine = 0;
  for (int n = 0; n < 20; n += 2) {
    cosine += term;
    term *= angle / (n + 1);
    sine += term;
    term *= -angle / (n + 2);
  }
  return {cosine, sine};
}

}  // namespace

ToyModel::ToyModel(const ToyOptions& options) : options_(options), width_(options.heads * options.head_dim) {
  Random random(options.seed);
  const int kv_width = options.kv_heads * options.head_dim;
  embedding_ = RandomMatrix(options.vocab, width_, std::sqrt(float(options.vocab)), &random);  // unit variance
  // Gains by trial: queries sharp enough that the cache matters, logits spread like a real model's.
  for (int i = 0; i < options.layers; ++i) {
    layers_.push_back({RandomMatrix(width_, width_, 1.5f, &random), RandomMatrix(width_, kv_width, 1.0f, &random),
                       RandomMatrix(width_, kv_width, 1.0f, &random), RandomMatrix(width_, width_, 1.5f, &random),
                       RandomMatrix(width_, 2 * width_, 1.0f, &random),
                       RandomMatrix(2 * width_, width_, 1.0f, &random)});
  }
  unembedding_ = RandomMatrix(width_, options.vocab, 2.0f, &random);

  const int pairs = options.head_dim / 2;
  RopeShape rope{RopePairing::kNorm, 0, options.head_dim, {}};
  cosines_.resize(std::size_t(options.max_tokens) * pairs);
  sines_.resize(cosines_.size());
  for (int pair = 0; pair < pairs; ++pair) {
    const double radians = PortableExp(-PortableLog(10000.0) * pair / pairs);
    rope.radians_per_token.push_back(float(radians));
    const auto [step_cos, step_sin] = CosSin(double(float(radians)));
    double cosine = 1, sine = 0;
    for (int position = 0; position < options.max_tokens; ++position) {
      cosines_[std::size_t(position) * pairs + pair] = float(cosine);
      sines_[std::size_t(position) * pairs + pair] = float(sine);
      const double next = cosine * step_cos - sine * step_sin;
      sine = sine * step_cos + cosine * step_sin;
      cosine = next;
    }
  }
  shape_.element_type = options.element_type;
  shape_.layers.assign(options.layers, {options.kv_heads, options.head_dim, options.head_dim, rope});
  if (options.key_only_last_layer) shape_.layers.back().value_dim = 0;
}

void ToyModel::Rotate(std::span<float> heads, int position) const {
  const int pairs = options_.head_dim / 2;
  for (std::size_t i = 0; i < heads.size() / 2; ++i) {
    const std::size_t at = std::size_t(position) * pairs + i % pairs;
    const float even = heads[2 * i], odd = heads[2 * i + 1];
    heads[2 * i] = even * cosines_[at] - odd * sines_[at];
    heads[2 * i + 1] = odd * cosines_[at] + even * sines_[at];
  }
}

void ToyModel::AppendRounded(std::span<const float> values, std::vector<float>* rows) const {
  for (float value : values) {
    std::byte stored[4];
    StoreElement(value, options_.element_type, stored);
    rows->push_back(LoadElement(stored, options_.element_type));
  }
}

void ToyModel::Attend(const Layer& layer, const ToyCache& cache, int tokens, std::span<const float> query,
                      std::span<float> mixed) const {
  const int dim = options_.head_dim;
  const int kv_width = options_.kv_heads * dim;
  const std::vector<float>& values = cache.value.empty() ? cache.key : cache.value;
  const float scale = 1.0f / std::sqrt(float(dim));
  std::vector<float> weights(tokens);
  std::vector<float> heads(query.size(), 0.0f);
  for (int head = 0; head < options_.heads; ++head) {
    const int kv_offset = head / (options_.heads / options_.kv_heads) * dim;
    float top = -INFINITY;
    for (int t = 0; t < tokens; ++t) {
      const float* key = cache.key.data() + std::size_t(t) * kv_width + kv_offset;
      float score = 0;
      for (int c = 0; c < dim; ++c) score += query[head * dim + c] * key[c];
      weights[t] = score * scale;
      top = std::max(top, weights[t]);
    }
    float total = 0;
    for (float& weight : weights) total += weight = float(PortableExp(double(weight) - top));
    for (int t = 0; t < tokens; ++t) {
      const float* value = values.data() + std::size_t(t) * kv_width + kv_offset;
      for (int c = 0; c < dim; ++c) heads[head * dim + c] += weights[t] * value[c];
    }
    for (int c = 0; c < dim; ++c) heads[head * dim + c] /= total;
  }
  AddProduct(heads, layer.output, mixed);
}

void ToyModel::Forward(Token token, int position, std::span<ToyCache> caches, std::span<float> logits) const {
  const auto row = embedding_.begin() + std::ptrdiff_t(token) * width_;
  std::vector<float> x(row, row + width_);
  const int kv_width = options_.kv_heads * options_.head_dim;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    std::vector<float> normed = Normed(x);
    std::vector<float> query(width_, 0.0f), key(kv_width, 0.0f), value(kv_width, 0.0f);
    AddProduct(normed, layer.query, query);
    AddProduct(normed, layer.key, key);
    Rotate(query, position);
    Rotate(key, position);
    AppendRounded(key, &caches[i].key);
    if (shape_.layers[i].value_dim > 0) {
      AddProduct(normed, layer.value, value);
      AppendRounded(value, &caches[i].value);
    }
    Attend(layer, caches[i], position + 1, query, x);
    normed = Normed(x);
    std::vector<float> hidden(2 * width_, 0.0f);
    AddProduct(normed, layer.up, hidden);
    for (float& h : hidden) h /= 1.0f + float(PortableExp(-double(h)));
    AddProduct(hidden, layer.down, x);
  }
  if (logits.empty()) return;
  std::fill(logits.begin(), logits.end(), 0.0f);
  AddProduct(Normed(x), unembedding_, logits);
  logits.back() += options_.end_of_text_bias;
}

}  // namespace lynx
