// Opening an engine: context, description, self-test.
#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/llama/llama_runtime.h"

namespace lynx {
namespace {

constexpr int kCellPadding = 256;  // llama.cpp rounds the cells of a sequence up to this
constexpr int kMaxContext = 1 << 24;
constexpr int kMaxThreads = 512;
constexpr int kMaxBatch = 1 << 16;
constexpr int kSelfTestTokens = 8;

Status CheckRange(const char* name, int value, int smallest, int largest) {
  if (value >= smallest && value <= largest) return Ok();
  return Invalid(std::string(name) + " must be between " + std::to_string(smallest) + " and " +
                 std::to_string(largest) + ", not " + std::to_string(value));
}

Status CheckOptions(const LlamaOptions& options) {
  LYNX_RETURN_IF_ERROR(CheckRange("max_tokens", options.max_tokens, 1, kMaxContext));
  // One id stays free: the spare sequence of a pool.
  LYNX_RETURN_IF_ERROR(CheckRange("max_sequences", options.max_sequences, 1, int(llama_max_parallel_sequences()) - 1));
  LYNX_RETURN_IF_ERROR(CheckRange("threads", options.threads, 1, kMaxThreads));
  LYNX_RETURN_IF_ERROR(CheckRange("verify_batch", options.verify_batch, 1, kMaxBatch));
  return CheckRange("prefill_batch", options.prefill_batch, 1, kMaxBatch);
}

// Bytes of memory that this machine has; 0 where Linux's /proc does not say.
std::int64_t MemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kibibytes = 0;
  return file >> name >> kibibytes && name == "MemTotal:" ? kibibytes * 1024 : 0;
}

// llama.cpp touches the whole cache when it is created: one that is larger than the memory would not fail but kill.
Status CheckMemory(const llama_model& model, std::int64_t cells) {
  const std::int64_t token_bytes =
      std::int64_t{4} * llama_model_n_layer(&model) * llama_model_n_head_kv(&model) * KeyDim(model);
  const std::int64_t memory = MemoryBytes();
  if (token_bytes <= 0 || memory <= 0 || cells <= memory / token_bytes) return Ok();
  return LimitExceeded("a cache of " + std::to_string(cells) + " tokens needs " +
                       std::to_string(cells * token_bytes >> 20) + " MiB and this machine has " +
                       std::to_string(memory >> 20) + " MiB: lower max_tokens or max_sequences");
}

}  // namespace

Result<std::unique_ptr<Engine>> LlamaRuntime::Open(GgufModel gguf, const LlamaOptions& options) {
  LYNX_RETURN_IF_ERROR(CheckOptions(options));
  LYNX_RETURN_IF_ERROR(CheckArchitecture(gguf));
  try {
    std::unique_ptr<LlamaRuntime> engine(new LlamaRuntime(std::move(gguf), options));
    LYNX_RETURN_IF_ERROR(engine->CreateContext(options));
    LYNX_RETURN_IF_ERROR(engine->DescribeSelf());
    LYNX_RETURN_IF_ERROR(engine->SelfTest());
    return std::unique_ptr<Engine>(std::move(engine));
  } catch (const std::exception& error) {
    return EngineError(std::string("llama.cpp failed: ") + error.what());
  }
}

LlamaRuntime::LlamaRuntime(GgufModel gguf, const LlamaOptions& options)
    : log_(options.log),
      gguf_(std::move(gguf)),
      vocab_(llama_model_get_vocab(gguf_.model.get())),
      unified_(options.unified) {
  sequences_.resize(std::size_t(options.max_sequences));
  info_.vocab_size = llama_vocab_n_tokens(vocab_);
  info_.max_sequences = options.max_sequences;
  info_.prefill_batch = options.prefill_batch;
  info_.verify_batch = options.verify_batch;
  const int trained = llama_model_n_ctx_train(gguf_.model.get());
  info_.max_tokens = trained > 0 ? std::min(options.max_tokens, trained) : options.max_tokens;
  if (info_.max_tokens < options.max_tokens && options.log) {
    options.log("the context is limited to the " + std::to_string(trained) + " tokens that the model was trained for");
  }
}

Status LlamaRuntime::CreateContext(const LlamaOptions& options) {
  const std::int64_t cells_each = (std::int64_t{info_.max_tokens} + kCellPadding - 1) / kCellPadding * kCellPadding;
  const std::int64_t cells = cells_each * options.max_sequences;
  if (cells > INT32_MAX) return LimitExceeded("max_tokens * max_sequences is too large");
  LYNX_RETURN_IF_ERROR(CheckMemory(*gguf_.model, cells));

  llama_context_params params = llama_context_default_params();
  params.n_ctx = std::uint32_t(cells);
  params.n_seq_max = std::uint32_t(options.max_sequences + int(unified_));
  params.n_ubatch = std::uint32_t(std::max(options.prefill_batch, options.verify_batch));
  params.n_batch = std::max(params.n_ubatch, std::uint32_t(options.verify_batch * options.max_sequences));
  params.n_outputs_max =
      std::min(params.n_batch, std::max(std::uint32_t(options.verify_batch * options.max_sequences), params.n_seq_max));
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  params.type_k = GGML_TYPE_BF16;
  params.type_v = GGML_TYPE_BF16;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.swa_full = true;
  params.kv_unified = unified_;
  params.offload_kqv = false;
  params.op_offload = false;
  params.no_perf = true;
  params.cb_eval = LlamaProbe::OnNode;
  params.cb_eval_user_data = &probe_;
  TakeLlamaError("");
  context_.reset(llama_init_from_model(gguf_.model.get(), params));
  if (!context_) return EngineError("llama.cpp can't create a context: " + TakeLlamaError("no reason given"));
  if (llama_get_memory(context_.get()) == nullptr) return Unsupported("this model keeps no cache");
  batch_tokens_ = int(llama_n_batch(context_.get()));
  batch_outputs_ = std::min(batch_tokens_, int(params.n_outputs_max));
  batch_ = llama_batch_init(batch_tokens_, 0, 1);
  return Ok();
}

// What llama.cpp stores is learned from the state of one token.
Status LlamaRuntime::DescribeSelf() {
  if (info_.vocab_size <= 0) return Unsupported("this model has no vocabulary");
  info_.model = ModelName(*gguf_.model);
  info_.revision = gguf_.revision;
  LYNX_ASSIGN_OR_RETURN(const SequenceId probe, Open());
  const Token token = 0;
  LYNX_RETURN_IF_ERROR(Step(std::vector<StepInput>{{probe, std::span(&token, 1), Logits::kNone}}, nullptr));
  std::vector<std::uint8_t> state(llama_state_seq_get_size(context_.get(), probe));
  llama_state_seq_get_data(context_.get(), state.data(), state.size(), probe);
  Close(probe);
  LYNX_ASSIGN_OR_RETURN(layout_, StateLayout::Discover(std::as_bytes(std::span(state))));
  LYNX_ASSIGN_OR_RETURN(info_.shape, DescribeCache(gguf_, layout_));
  return Ok();
}

// One sequence runs a few tokens in a batch and, from the middle on, once more one by one; another one gets its block.
// All three caches and the logits behind them must be equal.
Status LlamaRuntime::SelfTest() {
  const int count = std::min(kSelfTestTokens, info_.max_tokens - 1);
  if (count < 2) return Ok();
  std::vector<Token> tokens;
  for (int i = 0; i <= count; ++i) tokens.push_back(Token((1 + 7919 * std::int64_t{i}) % info_.vocab_size));
  const std::span<const Token> all(tokens);
  const auto append = [&](SequenceId sequence, int first, int end, std::vector<float>* logits) {
    return Step(std::vector<StepInput>{{sequence, all.subspan(first, end - first), Logits::kLast}}, logits);
  };
  const auto same = [&](const CacheBlock& a, const CacheBlock& b) {
    for (int layer = 0; layer < layout_.layers(); ++layer) {
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        if (!std::ranges::equal(a.Rows(layer, kind), b.Rows(layer, kind))) return false;
      }
    }
    return true;
  };
  const SequenceId from = 0;
  const SequenceId to = SequenceId(sequences_.size()) - 1;
  sequences_[from].open = true;
  sequences_[to].open = true;
  std::vector<float> batched, next, stepped, imported;
  CacheBlock exported(info_.shape, 0, count), again(info_.shape, 0, count), back(info_.shape, 0, count);

  LYNX_RETURN_IF_ERROR(append(from, 0, count, &batched));
  LYNX_RETURN_IF_ERROR(ReadBlock(from, &exported));
  LYNX_RETURN_IF_ERROR(Truncate(from, count / 2));
  for (int i = count / 2; i < count; ++i) LYNX_RETURN_IF_ERROR(append(from, i, i + 1, &stepped));
  LYNX_RETURN_IF_ERROR(ReadBlock(from, &again));
  LYNX_RETURN_IF_ERROR(append(from, count, count + 1, &next));
  LYNX_RETURN_IF_ERROR(Truncate(from, 0));
  LYNX_RETURN_IF_ERROR(WriteBlock(to, exported));
  LYNX_RETURN_IF_ERROR(ReadBlock(to, &back));
  LYNX_RETURN_IF_ERROR(append(to, count, count + 1, &imported));
  if (!same(exported, back) || next != imported) {
    return EngineError("self-test: a cache written into llama.cpp is not the one that was read from it");
  }
  if (!same(exported, again) || batched != stepped) {
    return EngineError(
        "self-test: this llama.cpp computes a batch differently from single tokens, so drafts can't be verified "
        "exactly: build it with -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF or use Q4_0, Q4_1 or Q8_0 weights");
  }
  Close(from);
  Close(to);
  return Ok();
}

}  // namespace lynx
