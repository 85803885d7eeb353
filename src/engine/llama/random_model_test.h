// Small models with random weights, built in memory: tests of the engine that need no file.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "engine/llama/gguf_model.h"
#include "ggml-backend.h"
#include "gguf.h"

namespace lynx {

struct RandomModelOptions {
  std::string architecture = "llama";
  int layers = 2;
  int embedding = 128;
  int heads = 4;
  int kv_heads = 2;
  int context = 1024;
  int vocabulary = 128;
  float key_bias = 0.0f;  // amplitude of attn_k.bias, where the architecture has one
  std::uint64_t seed = 1;
  // Further metadata: architecture-relative keys.
  std::vector<std::pair<std::string, std::uint32_t>> integers;
  std::vector<std::pair<std::string, float>> floats;
  std::vector<std::pair<std::string, std::string>> strings;
};

// Uniform in (-a, a): weights with a variance of 1 / row length, norms near 1, biases as asked. A tensor's values
// depend on its name and the seed only.
inline void FillTensor(ggml_tensor* tensor, void* user) {
  const auto& options = *static_cast<const RandomModelOptions*>(user);
  const std::string_view name(tensor->name);
  std::uint64_t seed = options.seed;
  for (char c : name) seed = Mix64(seed ^ std::uint64_t(std::uint8_t(c)));
  Random random(seed);
  const bool norm = name.find("norm") != std::string_view::npos;
  float amplitude = norm ? 0.1f : std::sqrt(3.0f / float(tensor->ne[0]));
  if (name.ends_with(".bias")) amplitude = name.find("attn_k") != std::string_view::npos ? options.key_bias : 0.1f;
  std::vector<float> values(std::size_t(ggml_nelements(tensor)));
  for (float& value : values) value = (norm ? 1.0f : 0.0f) + amplitude * float(2.0 * random.Unit() - 1.0);
  ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

// The model pointer is null if llama.cpp refuses the metadata.
inline GgufModel MakeRandomModel(RandomModelOptions options) {
  StartLlama();
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf(gguf_init_empty(), gguf_free);
  const std::string prefix = options.architecture + ".";
  gguf_set_val_str(gguf.get(), "general.architecture", options.architecture.c_str());
  gguf_set_val_str(gguf.get(), "general.name", "random");
  gguf_set_val_str(gguf.get(), "tokenizer.ggml.model", "none");
  const auto set = [&](const std::string& key, int value) {
    gguf_set_val_u32(gguf.get(), (prefix + key).c_str(), std::uint32_t(value));
  };
  set("context_length", options.context);
  set("embedding_length", options.embedding);
  set("block_count", options.layers);
  set("feed_forward_length", 2 * options.embedding);
  set("attention.head_count", options.heads);
  set("attention.head_count_kv", options.kv_heads);
  set("vocab_size", options.vocabulary);
  gguf_set_val_f32(gguf.get(), (prefix + "attention.layer_norm_rms_epsilon").c_str(), 1e-5f);
  for (const auto& [key, value] : options.integers) set(key, int(value));
  for (const auto& [key, value] : options.floats) gguf_set_val_f32(gguf.get(), (prefix + key).c_str(), value);
  for (const auto& [key, value] : options.strings) gguf_set_val_str(gguf.get(), (prefix + key).c_str(), value.c_str());
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.progress_callback = [](float, void*) { return true; };
  GgufModel model;
  model.model.reset(llama_model_init_from_user(gguf.get(), FillTensor, &options, params));
  model.revision = "random:" + std::to_string(options.seed);
  return model;
}

}  // namespace lynx
