// Looks into llama.cpp's graph while it runs: the queries that attention reads, the residual stream, and the output
// projection.
#pragma once

#include <vector>

#include "lynx/engine.h"

struct ggml_tensor;

namespace lynx {

class LlamaProbe {
 public:
  // llama.cpp's cb_eval; `probe` is a LlamaProbe. Asks for nothing unless a probe is running.
  static bool OnNode(ggml_tensor* node, bool ask, void* probe);

  // From now on nodes fill *layers, sized to the model; until End.
  void Begin(std::vector<LayerProbe>* layers, int layer_count);
  // kEngine when a layer has shown no queries.
  Status End();

 private:
  bool Wants(const ggml_tensor& node) const;
  void Take(const ggml_tensor& node);
  void TakeQueries(const ggml_tensor& queries, LayerProbe* layer);
  void TakeResidual(const ggml_tensor& residual, int layer);
  void TakeOutput(const ggml_tensor& weights, LayerProbe* layer);

  std::vector<LayerProbe>* layers_ = nullptr;
  int attentions_ = 0;  // seen since Begin
  std::vector<double> residual_energy_;
  std::vector<double> residual_count_;
};

}  // namespace lynx
