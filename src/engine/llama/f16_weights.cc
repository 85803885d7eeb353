#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>

#include "base/status_macros.h"
#include "engine/llama/gguf_model.h"
#include "engine/llama/llama_engine.h"
#include "engine/llama/llama_log.h"
#include "llama.h"

namespace lynx {
namespace {

constexpr std::size_t kLongestStem = 100;  // file systems take names of 255 bytes

}  // namespace

Result<std::string> WithF16Weights(const std::string& model_path, const std::string& folder) {
  namespace fs = std::filesystem;
  // Models of the same name and size may differ: the revision tells them apart.
  LYNX_ASSIGN_OR_RETURN(std::string revision, FileRevision(model_path));
  std::replace(revision.begin(), revision.end(), ':', '-');
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return IoError("can't make the folder " + folder + ": " + error.message());
  const std::string stem = fs::path(model_path).stem().string().substr(0, kLongestStem);
  const std::string target = (fs::path(folder) / (stem + "-" + revision + "-f16.gguf")).string();
  if (fs::exists(target, error)) return target;
  // One of several that make it at once puts its own file in place last; all are the same.
  const std::string unfinished = target + "." + std::to_string(std::random_device()()) + ".part";
  const LlamaLog quiet({});
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_MOSTLY_F16;
  params.allow_requantize = true;
  params.nthread = 1;
  if (llama_model_quantize(model_path.c_str(), unfinished.c_str(), &params) != 0) {
    fs::remove(unfinished, error);
    return EngineError("llama.cpp can't turn the weights of " + model_path + " into F16; use --weights as-is");
  }
  fs::rename(unfinished, target, error);
  if (error) return IoError("can't write " + target + ": " + error.message());
  return target;
}

}  // namespace lynx
