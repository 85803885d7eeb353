#include "engine/toy/toy_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <thread>

#include "base/float16.h"
#include "base/status_macros.h"
#include "engine/toy/toy_model.h"

namespace lynx {
namespace {

constexpr int kPrintable = 95;  // ' ' … '~'

struct Sequence {
  int length = 0;
  std::vector<ToyCache> layers;
};

class ToyEngine final : public Engine {
 public:
  explicit ToyEngine(const ToyOptions& options)
      : options_(options), model_(options), sequences_(options.max_sequences) {
    info_.model = "toy";
    info_.revision = "seed=" + std::to_string(options.seed) + " heads=" + std::to_string(options.heads) +
                     " vocab=" + std::to_string(options.vocab) + " bias=" + std::to_string(options.end_of_text_bias);
    info_.shape = model_.shape();
    info_.vocab_size = options.vocab;
    info_.max_sequences = options.max_sequences;
    info_.max_tokens = options.max_tokens;
    info_.prefill_batch = 32;
    info_.verify_batch = options.verify_batch;
  }

  const EngineInfo& info() const override { return info_; }
  Result<std::vector<Token>> Tokenize(std::string_view text, bool special) const override;
  std::string TokenText(Token token) const override;
  bool IsEndOfText(Token token) const override { return token == options_.vocab - 1; }
  Result<std::string> ChatPrompt(const std::vector<ChatMessage>& messages) const override;

  Result<SequenceId> Open() override;
  void Close(SequenceId sequence) override;
  int Length(SequenceId sequence) const override { return IsOpen(sequence) ? sequences_[sequence]->length : 0; }
  Status Step(std::span<const StepInput> inputs, std::vector<float>* logits) override;
  Status Truncate(SequenceId sequence, int length) override;
  Status CopyPrefix(SequenceId from, SequenceId to, int length) override;
  Status ReadBlock(SequenceId sequence, CacheBlock* block) override;
  Status WriteBlock(SequenceId sequence, const CacheBlock& block) override;

 private:
  bool IsOpen(SequenceId sequence) const {
    return sequence >= 0 && sequence < options_.max_sequences && sequences_[sequence].has_value();
  }
  Status CheckSequence(SequenceId sequence) const {
    return IsOpen(sequence) ? Ok() : Invalid("sequence " + std::to_string(sequence) + " is not open");
  }
  Status CheckInputs(std::span<const StepInput> inputs, const std::vector<float>* logits) const;
  std::vector<float>& Rows(ToyCache* cache, KvKind kind) { return kind == KvKind::kKey ? cache->key : cache->value; }
  std::size_t RowSize(int layer, KvKind kind) const {
    const LayerShape& shape = info_.shape.layers[layer];
    return std::size_t(shape.kv_heads) * shape.HeadDim(kind);
  }
  void Resize(Sequence* sequence, int length);

  ToyOptions options_;
  ToyModel model_;
  EngineInfo info_;
  std::vector<std::optional<Sequence>> sequences_;
};

// The last id is end of text and stands for no byte.
Result<std::vector<Token>> ToyEngine::Tokenize(std::string_view text, bool /*special*/) const {
  std::vector<Token> tokens;
  for (char c : text) tokens.push_back((int(std::uint8_t(c)) - ' ' + 256) % 256 % (options_.vocab - 1));
  return tokens;
}

Result<std::string> ToyEngine::ChatPrompt(const std::vector<ChatMessage>& messages) const {
  std::string prompt;
  for (const ChatMessage& message : messages) prompt += (prompt.empty() ? "" : " ") + message.content;
  return prompt;
}

std::string ToyEngine::TokenText(Token token) const {
  if (token < 0 || token >= options_.vocab - 1) return {};
  if (token < kPrintable) return std::string(1, char(' ' + token));
  return std::string("<").append(std::to_string(token)).append(">");
}

Result<SequenceId> ToyEngine::Open() {
  for (SequenceId id = 0; id < options_.max_sequences; ++id) {
    if (sequences_[id]) continue;
    sequences_[id].emplace();
    sequences_[id]->layers.resize(options_.layers);
    return id;
  }
  return LimitExceeded("all " + std::to_string(options_.max_sequences) + " sequences are open");
}

void ToyEngine::Close(SequenceId sequence) {
  if (IsOpen(sequence)) sequences_[sequence].reset();
}

Status ToyEngine::CheckInputs(std::span<const StepInput> inputs, const std::vector<float>* logits) const {
  std::vector<bool> seen(options_.max_sequences);
  for (const StepInput& input : inputs) {
    LYNX_RETURN_IF_ERROR(CheckSequence(input.sequence));
    if (seen[input.sequence]) return Invalid("a sequence is stepped twice in one call");
    seen[input.sequence] = true;
    if (input.logits != Logits::kNone && logits == nullptr) return Invalid("logits are wanted but have no place");
    for (Token token : input.tokens) {
      if (token < 0 || token >= options_.vocab)
        return Invalid("token " + std::to_string(token) + " is not in the vocabulary");
    }
    if (input.tokens.size() > std::size_t(options_.max_tokens - Length(input.sequence))) {
      return LimitExceeded("the context of " + std::to_string(options_.max_tokens) + " tokens is full");
    }
  }
  return Ok();
}

Status ToyEngine::Step(std::span<const StepInput> inputs, std::vector<float>* logits) {
  LYNX_RETURN_IF_ERROR(CheckInputs(inputs, logits));
  if (logits != nullptr) logits->clear();
  std::size_t steps = 0;
  for (const StepInput& input : inputs) {
    Sequence& sequence = *sequences_[input.sequence];
    steps += input.tokens.size();
    for (std::size_t i = 0; i < input.tokens.size(); ++i) {
      const bool last = i + 1 == input.tokens.size();
      std::span<float> row;
      if (input.logits == Logits::kAll || (input.logits == Logits::kLast && last)) {
        logits->resize(logits->size() + options_.vocab);
        row = std::span(*logits).last(options_.vocab);
      }
      model_.Forward(input.tokens[i], sequence.length++, sequence.layers, row);
    }
  }
  if (options_.step_delay_ns > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(options_.step_delay_ns * std::int64_t(steps)));
  }
  return Ok();
}

void ToyEngine::Resize(Sequence* sequence, int length) {
  sequence->length = length;
  for (int layer = 0; layer < options_.layers; ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      Rows(&sequence->layers[layer], kind).resize(RowSize(layer, kind) * length);
    }
  }
}

Status ToyEngine::Truncate(SequenceId sequence, int length) {
  LYNX_RETURN_IF_ERROR(CheckSequence(sequence));
  if (length < 0 || length > Length(sequence)) return Invalid("a sequence can't be truncated to more than it holds");
  Resize(&*sequences_[sequence], length);
  return Ok();
}

Status ToyEngine::CopyPrefix(SequenceId from, SequenceId to, int length) {
  LYNX_RETURN_IF_ERROR(CheckSequence(from));
  LYNX_RETURN_IF_ERROR(CheckSequence(to));
  if (from == to || Length(to) != 0) return Invalid("a prefix is copied into another, empty sequence");
  if (length < 0 || length > Length(from)) return Invalid("the prefix is longer than the sequence");
  *sequences_[to] = *sequences_[from];
  Resize(&*sequences_[to], length);
  return Ok();
}

Status ToyEngine::ReadBlock(SequenceId sequence, CacheBlock* block) {
  LYNX_RETURN_IF_ERROR(CheckSequence(sequence));
  if (block->shape() != info_.shape) return Invalid("the block has another cache shape");
  if (block->first_token() > Length(sequence) - block->token_count()) return Invalid("the sequence lacks these tokens");
  for (int layer = 0; layer < options_.layers; ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const float* from =
          Rows(&sequences_[sequence]->layers[layer], kind).data() + RowSize(layer, kind) * block->first_token();
      const int bytes = ElementBytes(options_.element_type);
      const std::span<std::byte> to = block->Rows(layer, kind);
      for (std::size_t at = 0; at < to.size(); at += bytes) StoreElement(*from++, options_.element_type, &to[at]);
    }
  }
  return Ok();
}

Status ToyEngine::WriteBlock(SequenceId sequence, const CacheBlock& block) {
  LYNX_RETURN_IF_ERROR(CheckSequence(sequence));
  if (block.shape() != info_.shape) return Invalid("the block has another cache shape");
  if (block.first_token() > Length(sequence)) return Invalid("the block leaves a gap behind the sequence");
  if (block.token_count() > options_.max_tokens - block.first_token()) {
    return LimitExceeded("the context of " + std::to_string(options_.max_tokens) + " tokens is full");
  }
  const int bytes = ElementBytes(options_.element_type);
  for (int layer = 0; layer < options_.layers; ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const std::span<const std::byte> from = block.Rows(layer, kind);
      for (std::size_t at = 0; at < from.size(); at += bytes) {
        if (!std::isfinite(LoadElement(&from[at], options_.element_type))) {
          return Corrupt("the block holds a value that is not finite in layer " + std::to_string(layer));
        }
      }
    }
  }
  Sequence& into = *sequences_[sequence];
  Resize(&into, std::max(into.length, block.first_token() + block.token_count()));
  for (int layer = 0; layer < options_.layers; ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const std::span<const std::byte> from = block.Rows(layer, kind);
      float* to = Rows(&into.layers[layer], kind).data() + RowSize(layer, kind) * block.first_token();
      for (std::size_t at = 0; at < from.size(); at += bytes) *to++ = LoadElement(&from[at], options_.element_type);
    }
  }
  return Ok();
}

}  // namespace

Result<std::unique_ptr<Engine>> MakeToyEngine(const ToyOptions& options) {
  const auto bad = [](const char* what) { return Invalid(std::string("toy engine: ") + what); };
  if (options.layers < 1 || options.kv_heads < 1) return bad("layers and kv_heads must be at least 1");
  if (options.heads < 1 || options.heads % options.kv_heads != 0) return bad("heads must be a multiple of kv_heads");
  if (options.head_dim < 2 || options.head_dim % 2 != 0) return bad("head_dim must be even");
  if (options.vocab < 2) return bad("vocab must be at least 2");
  if (options.max_tokens < 1 || options.max_sequences < 1)
    return bad("max_tokens and max_sequences must be at least 1");
  if (options.verify_batch < 1 || options.step_delay_ns < 0)
    return bad("verify_batch or step_delay_ns is out of range");
  return std::unique_ptr<Engine>(std::make_unique<ToyEngine>(options));
}

}  // namespace lynx
