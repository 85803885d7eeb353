// The engine itself; llama_engine.h opens it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/llama/gguf_model.h"
#include "engine/llama/llama_engine.h"
#include "engine/llama/llama_log.h"
#include "engine/llama/llama_probe.h"
#include "engine/llama/sequence_state.h"
#include "llama.h"
#include "lynx/engine.h"

namespace lynx {

class LlamaRuntime final : public Engine {
 public:
  // What OpenLlamaEngine does once the model is loaded; options.model_path and progress are not used.
  static Result<std::unique_ptr<Engine>> Open(GgufModel gguf, const LlamaOptions& options);
  ~LlamaRuntime() override;

  const EngineInfo& info() const override { return info_; }
  Result<std::vector<Token>> Tokenize(std::string_view text, bool special) const override;
  std::string TokenText(Token token) const override;
  bool IsEndOfText(Token token) const override;
  Result<std::string> ChatPrompt(const std::vector<ChatMessage>& messages) const override;

  Result<SequenceId> Open() override;
  void Close(SequenceId sequence) override;
  int Length(SequenceId sequence) const override;
  Status Step(std::span<const StepInput> inputs, std::vector<float>* logits) override;
  Status Probe(const StepInput& input, std::vector<LayerProbe>* layers) override;
  Status Truncate(SequenceId sequence, int length) override;
  Status CopyPrefix(SequenceId from, SequenceId to, int length) override;
  Status ReadBlock(SequenceId sequence, CacheBlock* block) override;
  Status WriteBlock(SequenceId sequence, const CacheBlock& block) override;

 private:
  struct Sequence {
    bool open = false;
    int length = 0;
  };
  // One token of a Step: where it comes from and which row of the answer it fills (-1: none).
  struct StepRow {
    std::size_t input = 0;
    std::size_t token = 0;
    std::ptrdiff_t logits_row = -1;
  };
  struct ContextDeleter {
    void operator()(llama_context* context) const { llama_free(context); }
  };

  LlamaRuntime(GgufModel gguf, const LlamaOptions& options);
  Status CreateContext(const LlamaOptions& options);
  Status DescribeSelf();
  Status SelfTest();

  bool IsOpen(SequenceId sequence) const;
  Status CheckStep(std::span<const StepInput> inputs, const std::vector<float>* logits) const;
  std::size_t PlanRows(std::span<const StepInput> inputs);
  Status RunRows(std::span<const StepInput> inputs, std::span<const StepRow> rows, std::vector<float>* logits);
  Status CheckBlock(const CacheBlock& block) const;

  // A sequence's state into state_, and what it holds.
  Result<SequenceState> ReadState(llama_seq_id sequence);
  // Replaces a sequence by the state in `bytes`, which holds `length` tokens.
  Status WriteState(SequenceId sequence, const std::vector<std::byte>& bytes, int length);
  // Cells of the shared pool became free below cells of another sequence.
  void NoteHoles(SequenceId sequence);
  Status CloseHoles();

  LlamaLog log_;
  LlamaProbe probe_;  // outlives the context, which calls it
  GgufModel gguf_;
  std::unique_ptr<llama_context, ContextDeleter> context_;
  const llama_vocab* vocab_ = nullptr;
  bool unified_ = false;
  int batch_tokens_ = 0;   // most tokens in one llama_decode
  int batch_outputs_ = 0;  // most rows of logits in one llama_decode
  llama_batch batch_{};
  EngineInfo info_;
  StateLayout layout_;
  std::vector<Sequence> sequences_;
  bool holes_ = false;
  std::vector<StepRow> rows_;        // reused by Step
  std::vector<std::byte> state_;     // reused: the state last read
  std::vector<std::byte> composed_;  // reused: the state about to be written
};

}  // namespace lynx
