#include "engine/llama/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <span>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "engine/llama/llama_log.h"
#include "gguf.h"

namespace lynx {
namespace {

// Magic (4 bytes), version (u32), tensor count (u64), metadata count (u64).
constexpr std::size_t kSmallestGguf = 24;
constexpr std::size_t kMaxRopeFactors = 4096;

struct GgufDeleter {
  void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};

int MetadataInt(const llama_model& model, const std::string& key, int fallback) {
  const std::string text = Metadata(model, key);
  return text.empty() ? fallback : std::atoi(text.c_str());
}

// Unless the metadata say otherwise for K or V.
int HeadDim(const llama_model& model) { return llama_model_n_embd(&model) / std::max(llama_model_n_head(&model), 1); }

double MetadataDouble(const llama_model& model, const std::string& key, double fallback) {
  const std::string text = Metadata(model, key);
  return text.empty() ? fallback : std::atof(text.c_str());
}

// The RoPE factors are a tensor, which llama.h does not show: they are read from the file.
void ReadRopeFactors(const std::string& path, GgufModel* gguf_model) {
  const std::unique_ptr<gguf_context, GgufDeleter> gguf(gguf_init_from_file(path.c_str(), {true, nullptr}));
  if (!gguf) return;
  gguf_model->long_rope = gguf_find_tensor(gguf.get(), "rope_factors_long.weight") >= 0;
  const std::int64_t tensor = gguf_find_tensor(gguf.get(), "rope_freqs.weight");
  if (tensor < 0) return;
  const std::size_t bytes = gguf_get_tensor_size(gguf.get(), tensor);
  // A size that is not dims / 2 stands for "not described".
  gguf_model->rope_factors.resize(1);
  if (gguf_get_tensor_type(gguf.get(), tensor) != GGML_TYPE_F32 || bytes > kMaxRopeFactors * sizeof(float)) return;
  std::ifstream file(path, std::ios::binary);
  file.seekg(std::streamoff(gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), tensor)));
  gguf_model->rope_factors.resize(bytes / sizeof(float));
  file.read(reinterpret_cast<char*>(gguf_model->rope_factors.data()), std::streamsize(bytes));
  if (!file) gguf_model->rope_factors.resize(1);
}

bool OnProgress(float share, void* user) {
  (*static_cast<const std::function<void(float)>*>(user))(share);
  return true;
}

// Frequencies as ggml_rope_ext takes them without YaRN: scale * base^(-2i/dims) / factor(i).
RopeShape DescribeRope(const GgufModel& gguf, int key_dim) {
  const llama_model& model = *gguf.model;
  RopeShape rope;
  const std::string scaling = Metadata(model, "%s.rope.scaling.type");
  const llama_rope_type type = llama_model_rope_type(&model);
  const bool derivable = scaling.empty() || scaling == "none" || scaling == "linear";
  // SmolLM3 leaves every fourth layer unrotated, by code and not by metadata.
  if (!derivable || Metadata(model, "general.architecture") == "smollm3") return rope;
  if (type != LLAMA_ROPE_TYPE_NORM && type != LLAMA_ROPE_TYPE_NEOX) return rope;
  const int dims = MetadataInt(model, "%s.rope.dimension_count", key_dim);
  const double base = MetadataDouble(model, "%s.rope.freq_base", 10000.0);
  const double scale = scaling == "none" ? 1.0 : double(llama_model_rope_freq_scale_train(&model));
  if (dims <= 0 || dims > key_dim || dims % 2 != 0) return rope;
  if (!gguf.rope_factors.empty() && int(gguf.rope_factors.size()) != dims / 2) return rope;
  rope.pairing = type == LLAMA_ROPE_TYPE_NORM ? RopePairing::kNorm : RopePairing::kNeox;
  rope.dims = dims;
  for (int pair = 0; pair < dims / 2; ++pair) {
    const double factor = gguf.rope_factors.empty() ? 1.0 : double(gguf.rope_factors[pair]);
    rope.radians_per_token.push_back(float(scale * std::pow(base, -2.0 * pair / dims) / factor));
  }
  return rope;
}

}  // namespace

Result<std::string> FileRevision(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return IoError("can't open the model file " + path + ": check the path and its permissions");
  std::vector<char> buffer(std::size_t{1} << 20);
  std::uint32_t crc = 0;
  std::uint64_t bytes = 0;
  for (bool first = true; file; first = false) {
    file.read(buffer.data(), std::streamsize(buffer.size()));
    const auto count = std::size_t(file.gcount());
    if (first && (count < kSmallestGguf || std::memcmp(buffer.data(), "GGUF", 4) != 0)) {
      return Corrupt(path + " is not a GGUF model file");
    }
    crc = Crc32c(std::as_bytes(std::span(buffer.data(), count)), crc);
    bytes += count;
  }
  if (file.bad()) return IoError("can't read the model file " + path);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "crc32c:%08x+%llu", crc, static_cast<unsigned long long>(bytes));
  return std::string(text.data());
}

std::string Metadata(const llama_model& model, const std::string& key) {
  std::string name = key;
  if (key.starts_with("%s")) name = Metadata(model, "general.architecture") + key.substr(2);
  std::array<char, 512> text{};
  const int length = llama_model_meta_val_str(&model, name.c_str(), text.data(), text.size());
  return length < 0 ? std::string() : std::string(text.data());
}

int KeyDim(const llama_model& model) { return MetadataInt(model, "%s.attention.key_length", HeadDim(model)); }

void StartLlama() {
  static std::once_flag once;
  std::call_once(once, llama_backend_init);
}

Result<GgufModel> LoadGguf(const LlamaOptions& options) {
  StartLlama();
  GgufModel gguf;
  LYNX_ASSIGN_OR_RETURN(gguf.revision, FileRevision(options.model_path));
  ReadRopeFactors(options.model_path, &gguf);
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.use_extra_bufts = false;  // repacked weights round a batch differently from a single token
  params.load_mode = llama_supports_mmap() ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
  if (options.progress) {
    params.progress_callback = OnProgress;
    params.progress_callback_user_data = const_cast<std::function<void(float)>*>(&options.progress);
  }
  TakeLlamaError("");
  gguf.model.reset(llama_model_load_from_file(options.model_path.c_str(), params));
  if (!gguf.model) {
    return Corrupt("llama.cpp can't load " + options.model_path + " (" + TakeLlamaError("no reason given") +
                   "): fetch the file again or use a model of a supported architecture");
  }
  if (MetadataInt(*gguf.model, "split.count", 1) > 1) {
    return Unsupported(options.model_path + " is one part of a split model: merge it with llama-gguf-split --merge");
  }
  return gguf;
}

Status CheckArchitecture(const GgufModel& gguf) {
  const llama_model& model = *gguf.model;
  const std::string name = "the architecture '" + Metadata(model, "general.architecture") + "' ";
  if (llama_model_is_recurrent(&model)) {
    return Unsupported(name + "is recurrent: its state is not a cache of tokens; use a plain attention model");
  }
  if (llama_model_is_hybrid(&model)) {
    return Unsupported(name +
                       "mixes attention with recurrent layers, which can't be cut back; use a plain attention model");
  }
  if (llama_model_is_diffusion(&model)) return Unsupported(name + "generates by diffusion, not token by token");
  if (llama_model_has_encoder(&model) || !llama_model_has_decoder(&model)) {
    return Unsupported(name + "has an encoder; use a decoder-only model");
  }
  const llama_rope_type rope = llama_model_rope_type(&model);
  if (rope != LLAMA_ROPE_TYPE_NONE && rope != LLAMA_ROPE_TYPE_NORM && rope != LLAMA_ROPE_TYPE_NEOX) {
    return Unsupported(name + "has positions of several dimensions (M-RoPE); use a text-only model");
  }
  if (llama_model_n_swa(&model) > 0) {
    return Unsupported(name +
                       "has sliding-window layers, which keep only part of the tokens; use a model without them");
  }
  if (gguf.long_rope) {
    return Unsupported(name +
                       "uses LongRoPE, whose rotation depends on the node's context size; use a model without it");
  }
  return Ok();
}

std::string ModelName(const llama_model& model) {
  std::string name = Metadata(model, "general.name");
  if (!name.empty()) return name;
  name = Metadata(model, "general.basename");
  if (name.empty()) return Metadata(model, "general.architecture");
  const std::string size = Metadata(model, "general.size_label");
  return size.empty() ? name : name + " " + size;
}

Result<CacheShape> DescribeCache(const GgufModel& gguf, const StateLayout& layout) {
  const llama_model& model = *gguf.model;
  if (layout.element_type() != GGML_TYPE_BF16) return EngineError("llama.cpp did not keep the cache in BF16");
  const int key_dim = KeyDim(model);
  const int value_dim = MetadataInt(model, "%s.attention.value_length", HeadDim(model));
  const RopeShape rope = DescribeRope(gguf, key_dim);
  CacheShape shape;
  for (int index = 0; index < layout.layers(); ++index) {
    const std::size_t keys = layout.RowBytes(index, KvKind::kKey) / ElementBytes(shape.element_type);
    const std::size_t values = layout.RowBytes(index, KvKind::kValue) / ElementBytes(shape.element_type);
    LayerShape layer;
    if (values == 0 && keys != 0) {  // MLA: one row that all heads share
      layer = {1, int(keys), 0, {}};
    } else if (keys != 0) {
      if (key_dim <= 0 || value_dim <= 0 || keys % std::size_t(key_dim) != 0 ||
          keys / std::size_t(key_dim) * std::size_t(value_dim) != values) {
        return Unsupported("layer " + std::to_string(index) + " stores rows of " + std::to_string(keys) + " and " +
                           std::to_string(values) + " elements, which are not whole heads of " +
                           std::to_string(key_dim) + " and " + std::to_string(value_dim));
      }
      layer = {int(keys) / key_dim, key_dim, value_dim, rope};
    }
    shape.layers.push_back(layer);
  }
  return shape;
}

}  // namespace lynx
