#include <filesystem>
#include <string>
#include <system_error>

#include "engine/llama/llama_engine.h"
#include "engine/llama/llama_log.h"
#include "llama.h"

namespace lynx {

Result<std::string> WithF16Weights(const std::string& model_path, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto bytes = fs::file_size(model_path, error);
  if (error) return IoError("can't read " + model_path + ": " + error.message());
  fs::create_directories(folder, error);
  if (error) return IoError("can't make the folder " + folder + ": " + error.message());
  // The size tells models of the same name apart.
  const fs::path target =
      fs::path(folder) / (fs::path(model_path).stem().string() + "-" + std::to_string(bytes) + "-f16.gguf");
  if (fs::exists(target)) return target.string();
  const std::string unfinished = target.string() + ".part";
  const LlamaLog quiet({});
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_MOSTLY_F16;
  params.allow_requantize = true;
  params.nthread = 1;
  if (llama_model_quantize(model_path.c_str(), unfinished.c_str(), &params) != 0) {
    return EngineError("llama.cpp can't turn the weights of " + model_path + " into F16; use --weights as-is");
  }
  fs::rename(unfinished, target, error);
  if (error) return IoError("can't write " + target.string() + ": " + error.message());
  return target.string();
}

}  // namespace lynx
