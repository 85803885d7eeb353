#include "engine/llama/llama_probe.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "ggml.h"

namespace lynx {
namespace {

// llama.cpp names nodes "what-LAYER" and weights "blk.LAYER.what.weight".
constexpr std::string_view kResidual = "ffn_inp-";
constexpr std::string_view kOutputSuffix = ".attn_output.weight";

int LayerOfNode(const ggml_tensor& node) {
  const char* dash = std::strrchr(node.name, '-');
  return dash == nullptr ? -1 : std::atoi(dash + 1);
}

bool IsOutputProjection(const ggml_tensor& node) {
  return node.op == GGML_OP_MUL_MAT && std::string_view(node.src[0]->name).ends_with(kOutputSuffix);
}

// "blk.12.attn_output.weight" -> 12.
int LayerOfWeights(const ggml_tensor& weights) { return std::atoi(weights.name + std::strlen("blk.")); }

const float* RowOf(const ggml_tensor& tensor, std::int64_t i1, std::int64_t i2) {
  const auto* data = static_cast<const char*>(tensor.data);
  return reinterpret_cast<const float*>(data + std::size_t(i1) * tensor.nb[1] + std::size_t(i2) * tensor.nb[2]);
}

}  // namespace

bool LlamaProbe::OnNode(ggml_tensor* node, bool ask, void* probe) {
  auto* self = static_cast<LlamaProbe*>(probe);
  if (self->layers_ == nullptr || !self->Wants(*node)) return !ask;  // an unasked node goes on
  if (!ask) self->Take(*node);
  return true;
}

void LlamaProbe::Begin(std::vector<LayerProbe>* layers, int layer_count) {
  layers->assign(std::size_t(layer_count), {});
  residual_energy_.assign(std::size_t(layer_count), 0);
  residual_count_.assign(std::size_t(layer_count), 0);
  attentions_ = 0;
  layers_ = layers;
}

Status LlamaProbe::End() {
  std::vector<LayerProbe>& layers = *layers_;
  layers_ = nullptr;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].queries.empty()) return EngineError("llama.cpp showed no queries of layer " + std::to_string(i));
    if (residual_count_[i] > 0) layers[i].residual_rms = float(std::sqrt(residual_energy_[i] / residual_count_[i]));
  }
  return Ok();
}

bool LlamaProbe::Wants(const ggml_tensor& node) const {
  return node.op == GGML_OP_FLASH_ATTN_EXT || std::string_view(node.name).starts_with(kResidual) ||
         IsOutputProjection(node);
}

void LlamaProbe::Take(const ggml_tensor& node) {
  const bool output = IsOutputProjection(node);
  int layer = output ? LayerOfWeights(*node.src[0]) : LayerOfNode(node);
  // Attention has no name; a graph has one per layer, in order, and several graphs may run in one step.
  if (node.op == GGML_OP_FLASH_ATTN_EXT) layer = attentions_++ % int(layers_->size());
  if (layer < 0 || layer >= int(layers_->size())) return;
  if (node.op == GGML_OP_FLASH_ATTN_EXT) {
    TakeQueries(*node.src[0], &(*layers_)[std::size_t(layer)]);
  } else if (output) {
    TakeOutput(*node.src[0], &(*layers_)[std::size_t(layer)]);
  } else {
    TakeResidual(node, layer);
  }
}

// [channel, token, head] in ggml's order.
void LlamaProbe::TakeQueries(const ggml_tensor& queries, LayerProbe* layer) {
  if (queries.type != GGML_TYPE_F32) return;
  layer->query_heads = int(queries.ne[2]);
  for (std::int64_t token = 0; token < queries.ne[1]; ++token) {
    for (std::int64_t head = 0; head < queries.ne[2]; ++head) {
      const float* row = RowOf(queries, token, head);
      layer->queries.insert(layer->queries.end(), row, row + queries.ne[0]);
    }
  }
}

void LlamaProbe::TakeResidual(const ggml_tensor& residual, int layer) {
  if (residual.type != GGML_TYPE_F32) return;
  for (std::int64_t token = 0; token < residual.ne[1]; ++token) {
    const float* row = RowOf(residual, token, 0);
    for (std::int64_t c = 0; c < residual.ne[0]; ++c) {
      residual_energy_[std::size_t(layer)] += double(row[c]) * double(row[c]);
    }
    residual_count_[std::size_t(layer)] += double(residual.ne[0]);
  }
}

// Row r of the weights gives residual channel r from all attention outputs; column c belongs to one of those.
void LlamaProbe::TakeOutput(const ggml_tensor& weights, LayerProbe* layer) {
  if (!layer->output_norms.empty()) return;
  const ggml_type_traits* traits = ggml_get_type_traits(weights.type);
  std::vector<float> row(std::size_t(weights.ne[0]));
  std::vector<double> energy(row.size());
  for (std::int64_t r = 0; r < weights.ne[1]; ++r) {
    const float* values = row.data();
    if (weights.type == GGML_TYPE_F32) {
      values = RowOf(weights, r, 0);
    } else {
      if (traits->to_float == nullptr) return;
      traits->to_float(RowOf(weights, r, 0), row.data(), weights.ne[0]);
    }
    for (std::size_t c = 0; c < row.size(); ++c) energy[c] += double(values[c]) * double(values[c]);
  }
  for (const double sum : energy) layer->output_norms.push_back(float(std::sqrt(sum)));
}

}  // namespace lynx
