#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/llama/llama_engine.h"

namespace lynx {
namespace {

Result<std::unique_ptr<Engine>> OpenModel() {
  const char* path = std::getenv("LYNX_MODEL");
  if (path == nullptr) return Invalid("LYNX_MODEL names no model; run scripts/test");
  LlamaOptions options;
  options.model_path = path;
  options.max_tokens = 256;
  return OpenLlamaEngine(options);
}

TEST(LlamaProbe, ShowsWhatEveryLayerUses) {
  auto engine = OpenModel();
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const std::vector<Token> tokens = *(*engine)->Tokenize("The lynx waits beside the frozen river.", false);
  const SequenceId sequence = *(*engine)->Open();
  std::vector<LayerProbe> layers;
  ASSERT_TRUE((*engine)->Probe({sequence, tokens, Logits::kNone}, &layers).ok());
  EXPECT_EQ((*engine)->Length(sequence), int(tokens.size()));
  const CacheShape& shape = (*engine)->info().shape;
  ASSERT_EQ(layers.size(), shape.layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::size_t channels = std::size_t(layers[i].query_heads) * std::size_t(shape.layers[i].key_dim);
    EXPECT_EQ(layers[i].query_heads % shape.layers[i].kv_heads, 0) << i;
    EXPECT_EQ(layers[i].queries.size(), tokens.size() * channels) << i;
    EXPECT_EQ(layers[i].output_norms.size(),
              std::size_t(layers[i].query_heads) * std::size_t(shape.layers[i].value_dim))
        << i;
    EXPECT_GT(layers[i].residual_rms, 0.0f) << i;
  }

  // One token at a time shows the same queries, bit for bit.
  ASSERT_TRUE((*engine)->Truncate(sequence, 0).ok());
  std::vector<float> queries;
  for (const Token& token : tokens) {
    std::vector<LayerProbe> one;
    ASSERT_TRUE((*engine)->Probe({sequence, std::span(&token, 1), Logits::kNone}, &one).ok());
    queries.insert(queries.end(), one.back().queries.begin(), one.back().queries.end());
  }
  EXPECT_EQ(queries, layers.back().queries);
}

}  // namespace
}  // namespace lynx
