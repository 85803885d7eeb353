#include "engine/llama/llama_engine.h"

#include <utility>

#include "engine/llama/gguf_model.h"
#include "engine/llama/llama_log.h"
#include "engine/llama/llama_runtime.h"

namespace lynx {

Result<std::unique_ptr<Engine>> OpenLlamaEngine(const LlamaOptions& options) {
  Result<GgufModel> gguf = [&] {
    const LlamaLog log(options.log);  // while loading; the engine listens for itself
    return LoadGguf(options);
  }();
  if (!gguf.ok()) return gguf.status();
  return LlamaRuntime::Open(std::move(gguf).value(), options);
}

}  // namespace lynx
