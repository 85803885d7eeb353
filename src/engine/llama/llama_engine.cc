#include "engine/llama/llama_engine.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/llama/gguf_model.h"
#include "engine/llama/llama_log.h"
#include "engine/llama/llama_runtime.h"

namespace lynx {

Result<std::unique_ptr<Engine>> OpenLlamaEngine(const LlamaOptions& options) {
  const LlamaLog log(options.log);  // for the loading; the engine listens for itself
  LYNX_ASSIGN_OR_RETURN(GgufModel gguf, LoadGguf(options));
  LlamaOptions unlogged = options;
  return LlamaRuntime::Open(std::move(gguf), unlogged);
}

}  // namespace lynx
