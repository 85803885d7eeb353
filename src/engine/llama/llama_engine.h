// The llama.cpp engine: a GGUF model behind lynx::Engine, through llama.cpp's public C API (v0.5.0).
//
// Settings that make a row of logits independent of how tokens were batched, bit for bit on the CPU: KV in BF16, flash
// attention on, a llama.cpp built with GGML_LLAMAFILE=OFF and GGML_CPU_REPACK=OFF (stock builds are exact with Q4_0,
// Q4_1 and Q8_0 weights only). Opening an engine tests this and refuses a build that is not exact.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lynx/engine.h"
#include "lynx/result.h"

namespace lynx {

struct LlamaOptions {
  std::string model_path;
  int max_tokens = 4096;  // per sequence; more than the model was trained for is limited to that, with a log line
  int max_sequences = 1;
  // false (decode): every sequence has cells of its own, so that rollbacks never touch another sequence.
  // true (prefill): one pool of cells; CopyPrefix shares them and ReadBlock costs only its range. Closing or truncating
  // a sequence beside others makes the next Step rewrite all sequences once (about 0.4 ms per MB), because cell order
  // must stay position order.
  bool unified = false;
  int threads = 1;
  int verify_batch = 16;
  int prefill_batch = 256;
  // llama.cpp's log lines, without line ends. Empty: dropped. llama.cpp has one log per process, so every open engine
  // sees the lines of all. Called on any thread that runs an engine.
  std::function<void(std::string_view)> log;
  // The loaded share of the model, 0…1.
  std::function<void(float)> progress;
};

// Loads the model, checks it, tests the engine with a few tokens and returns it with no sequence open. kIo: the file
// can't be read. kCorrupt: it is not a whole GGUF. kUnsupported: an architecture whose cache Lynx can't carry or cut.
// kInvalid: an option out of range. kLimit: the cache does not fit this machine. kEngine: llama.cpp failed, or the
// self-test found that its cache or its batches are not exact.
Result<std::unique_ptr<Engine>> OpenLlamaEngine(const LlamaOptions& options);

// The model with its weights turned into F16 by llama.cpp's own quantizer, kept in `folder` and made once: what is measured
// on it is not hidden behind the rounding of activations that quantized weights bring. kIo, kCorrupt, kEngine.
Result<std::string> WithF16Weights(const std::string& model_path, const std::string& folder);

}  // namespace lynx
