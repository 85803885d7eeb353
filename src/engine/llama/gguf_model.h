// Loading a GGUF file with llama.cpp, saying what it is, refusing what Lynx can't carry.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/llama/llama_engine.h"
#include "engine/llama/sequence_state.h"
#include "llama.h"
#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

struct LlamaModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaModelDeleter>;

struct GgufModel {
  LlamaModelPtr model;
  std::string revision;
  std::vector<float> rope_factors;  // of the tensor rope_freqs (Llama 3): divisors of the frequencies; empty: none
  bool long_rope = false;           // factors chosen by the size of the context (LongRoPE)
};

// Starts llama.cpp, once; to be called before anything of it is used.
void StartLlama();

// "crc32c:<8 hex digits>+<bytes>" of the whole file: it tells files apart that were mixed up, not files that somebody
// made alike on purpose. kIo, kCorrupt when it is no GGUF.
Result<std::string> FileRevision(const std::string& path);

// Reads the whole file once for the revision.
Result<GgufModel> LoadGguf(const LlamaOptions& options);

// kUnsupported, naming the architecture, for models whose cache is not one row of K and V per token, all rows kept, the
// same on two nodes.
Status CheckArchitecture(const GgufModel& gguf);

// general.name, else basename and size label, else the architecture.
std::string ModelName(const llama_model& model);

// The cache of one sequence from what llama.cpp really stores (layout) and what the metadata says about heads and RoPE.
// Where the rotation can't be derived exactly (YaRN, LongRoPE, MLA), its pairing is kNone: it only describes.
Result<CacheShape> DescribeCache(const GgufModel& gguf, const StateLayout& layout);

// A metadata value as text, "" if there is none. `key` may begin with "%s", which stands for the architecture.
std::string Metadata(const llama_model& model, const std::string& key);

// Channels of one K head.
int KeyDim(const llama_model& model);

}  // namespace lynx
