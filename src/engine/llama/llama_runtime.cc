#include "engine/llama/llama_runtime.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "base/status_macros.h"

namespace lynx {
namespace {

// llama.cpp may throw (out of memory, a broken tokenizer); nothing of that leaves the engine.
template <typename Call>
auto Guarded(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    return EngineError(std::string("llama.cpp failed: ") + error.what());
  }
}

Status UnknownSequence(SequenceId sequence) { return Invalid("sequence " + std::to_string(sequence) + " is not open"); }

// A BF16 value is an infinity or NaN exactly if its exponent is all ones.
bool AllFinite(std::span<const std::byte> rows) {
  unsigned bad = 0;
  for (std::size_t i = 0; i + 1 < rows.size(); i += 2) {
    std::uint16_t bits;
    std::memcpy(&bits, rows.data() + i, sizeof bits);
    bad |= unsigned((bits & 0x7f80u) == 0x7f80u);
  }
  return bad == 0;
}

std::size_t WantedRows(const StepInput& input) {
  if (input.logits == Logits::kAll) return input.tokens.size();
  return input.logits == Logits::kLast ? 1 : 0;
}

}  // namespace

LlamaRuntime::~LlamaRuntime() {
  if (batch_.token != nullptr) llama_batch_free(batch_);
}

// --- text ---

Result<std::vector<Token>> LlamaRuntime::Tokenize(std::string_view text, bool special) const {
  if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) return Unsupported("this model has no tokenizer");
  if (text.size() > std::size_t{1} << 30) return LimitExceeded("text of more than 1 GiB");
  return Guarded([&]() -> Result<std::vector<Token>> {
    std::vector<Token> tokens;
    if (llama_vocab_get_add_bos(vocab_)) tokens.push_back(llama_vocab_bos(vocab_));
    const std::size_t begin = tokens.size();
    tokens.resize(begin + text.size() + 16);  // a byte gives at most one token; some tokenizers add a few
    int count = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      count = llama_tokenize(vocab_, text.data(), int(text.size()), tokens.data() + begin, int(tokens.size() - begin),
                             /*add_special=*/false, special);
      if (count >= 0) break;
      if (count == INT32_MIN) return LimitExceeded("the text has too many tokens");
      tokens.resize(begin + std::size_t(-count));
    }
    if (count < 0) return EngineError("llama.cpp can't tokenize this text");
    tokens.resize(begin + std::size_t(count));
    return tokens;
  });
}

std::string LlamaRuntime::TokenText(Token token) const {
  if (token < 0 || token >= info_.vocab_size || llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) return {};
  std::string text(64, '\0');
  int length = llama_token_to_piece(vocab_, token, text.data(), int(text.size()), 0, /*special=*/false);
  if (length < 0) {
    text.resize(std::size_t(-length));
    length = llama_token_to_piece(vocab_, token, text.data(), int(text.size()), 0, /*special=*/false);
  }
  text.resize(std::size_t(std::max(length, 0)));
  return text;
}

bool LlamaRuntime::IsEndOfText(Token token) const {
  return token >= 0 && token < info_.vocab_size && llama_vocab_is_eog(vocab_, token);
}

Result<std::string> LlamaRuntime::ChatPrompt(const std::vector<ChatMessage>& messages) const {
  const char* chat_template = llama_model_chat_template(gguf_.model.get(), nullptr);
  if (chat_template == nullptr) return Unsupported("this model has no chat template: send plain text instead");
  return Guarded([&]() -> Result<std::string> {
    std::vector<llama_chat_message> chat;
    for (const ChatMessage& message : messages) chat.push_back({message.role.c_str(), message.content.c_str()});
    std::string prompt(1024, '\0');
    for (int attempt = 0; attempt < 2; ++attempt) {
      const int length = llama_chat_apply_template(chat_template, chat.data(), chat.size(), /*add_ass=*/true,
                                                   prompt.data(), int(prompt.size()));
      if (length < 0) return Unsupported("llama.cpp does not know this model's chat template: send plain text instead");
      const bool fits = std::size_t(length) <= prompt.size();
      prompt.resize(std::size_t(length));
      if (fits) break;
    }
    return prompt;
  });
}

// --- sequences ---

bool LlamaRuntime::IsOpen(SequenceId sequence) const {
  return sequence >= 0 && sequence < int(sequences_.size()) && sequences_[sequence].open;
}

Result<SequenceId> LlamaRuntime::Open() {
  const auto free = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.open; });
  if (free == sequences_.end()) {
    return LimitExceeded("all " + std::to_string(sequences_.size()) + " sequences of the engine are open");
  }
  *free = {true, 0};
  return SequenceId(free - sequences_.begin());
}

void LlamaRuntime::Close(SequenceId sequence) {
  if (!IsOpen(sequence)) return;
  llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, -1, -1);
  NoteHoles(sequence);
  sequences_[sequence] = {};
}

int LlamaRuntime::Length(SequenceId sequence) const { return IsOpen(sequence) ? sequences_[sequence].length : 0; }

Status LlamaRuntime::Truncate(SequenceId sequence, int length) {
  if (!IsOpen(sequence)) return UnknownSequence(sequence);
  if (length < 0 || length > sequences_[sequence].length) {
    return Invalid("can't truncate a sequence of " + std::to_string(sequences_[sequence].length) + " tokens to " +
                   std::to_string(length));
  }
  if (length == sequences_[sequence].length) return Ok();
  if (!llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, length, -1)) {
    return EngineError("llama.cpp refused to truncate a sequence");
  }
  sequences_[sequence].length = length;
  NoteHoles(sequence);
  return Ok();
}

// --- steps ---

Status LlamaRuntime::CheckStep(std::span<const StepInput> inputs, const std::vector<float>* logits) const {
  std::vector<bool> seen(sequences_.size());
  for (const StepInput& input : inputs) {
    if (!IsOpen(input.sequence)) return UnknownSequence(input.sequence);
    if (seen[input.sequence]) return Invalid("a sequence appears twice in one step");
    seen[input.sequence] = true;
    if (input.tokens.empty()) return Invalid("a step without tokens");
    if (input.logits != Logits::kNone && logits == nullptr) return Invalid("no room for the wanted logits");
    for (Token token : input.tokens) {
      if (token < 0 || token >= info_.vocab_size) {
        return Invalid("token " + std::to_string(token) + " is not in the model's vocabulary of " +
                       std::to_string(info_.vocab_size));
      }
    }
    if (input.tokens.size() > std::size_t(info_.max_tokens - sequences_[input.sequence].length)) {
      return LimitExceeded("the context of " + std::to_string(info_.max_tokens) + " tokens is full");
    }
  }
  return Ok();
}

// Fills rows_ by rising sequence: llama.cpp puts neighbouring sequences into one graph run only if their ids rise.
// Returns the number of wanted rows.
std::size_t LlamaRuntime::PlanRows(std::span<const StepInput> inputs) {
  std::vector<std::size_t> order(inputs.size());
  std::vector<std::size_t> first_row(inputs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t wanted = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    first_row[i] = wanted;
    wanted += WantedRows(inputs[i]);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return inputs[a].sequence < inputs[b].sequence; });
  rows_.clear();
  for (std::size_t i : order) {
    const std::size_t count = inputs[i].tokens.size();
    const std::size_t silent = count - WantedRows(inputs[i]);
    for (std::size_t token = 0; token < count; ++token) {
      rows_.push_back({i, token, token < silent ? -1 : std::ptrdiff_t(first_row[i] + token - silent)});
    }
  }
  return wanted;
}

Status LlamaRuntime::RunRows(std::span<const StepInput> inputs, std::span<const StepRow> rows,
                             std::vector<float>* logits) {
  batch_.n_tokens = int(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const StepInput& input = inputs[rows[i].input];
    batch_.token[i] = input.tokens[rows[i].token];
    batch_.pos[i] = sequences_[input.sequence].length + int(rows[i].token);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = input.sequence;
    batch_.logits[i] = rows[i].logits_row >= 0;
  }
  TakeLlamaError("");
  const int outcome = llama_decode(context_.get(), batch_);
  if (outcome == 1) return LimitExceeded("llama.cpp found no free cells for the tokens");
  if (outcome != 0) {
    return EngineError("llama_decode failed with " + std::to_string(outcome) + ": " +
                       TakeLlamaError("no reason given"));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].logits_row < 0) continue;
    const float* row = llama_get_logits_ith(context_.get(), int(i));
    if (row == nullptr) return EngineError("llama.cpp returned no logits");
    std::copy_n(row, info_.vocab_size, logits->data() + rows[i].logits_row * info_.vocab_size);
  }
  return Ok();
}

Status LlamaRuntime::Step(std::span<const StepInput> inputs, std::vector<float>* logits) {
  LYNX_RETURN_IF_ERROR(CheckStep(inputs, logits));
  LYNX_RETURN_IF_ERROR(CloseHoles());
  const Status status = Guarded([&]() -> Status {
    const std::size_t wanted = PlanRows(inputs);
    if (logits != nullptr) logits->resize(wanted * std::size_t(info_.vocab_size));
    for (std::size_t begin = 0; begin < rows_.size();) {
      std::size_t end = begin;
      for (int outputs = 0; end < rows_.size() && end - begin < std::size_t(batch_tokens_); ++end) {
        outputs += int(rows_[end].logits_row >= 0);
        if (outputs > batch_outputs_) break;
      }
      LYNX_RETURN_IF_ERROR(RunRows(inputs, std::span(rows_).subspan(begin, end - begin), logits));
      begin = end;
    }
    return Ok();
  });
  for (const StepInput& input : inputs) {
    if (status.ok()) {
      sequences_[input.sequence].length += int(input.tokens.size());
    } else {
      llama_memory_seq_rm(llama_get_memory(context_.get()), input.sequence, sequences_[input.sequence].length, -1);
      NoteHoles(input.sequence);
    }
  }
  return status;
}

Status LlamaRuntime::Probe(const StepInput& input, std::vector<LayerProbe>* layers) {
  probe_.Begin(layers, int(info_.shape.layers.size()));
  // All rows are wanted: llama.cpp runs the end of the last layer for wanted rows only.
  const StepInput all{input.sequence, input.tokens, Logits::kAll};
  std::vector<float> logits;
  const Status stepped = Step(std::span(&all, 1), &logits);
  const Status probed = probe_.End();
  return stepped.ok() ? probed : stepped;
}

// --- the cache ---

// New cells are always the lowest free ones. So a hole below a sequence's last cell would be filled by its next token,
// and cell order would no longer be position order. In a pool of one sequence, or with cells of its own, the free cells
// always lie behind.
void LlamaRuntime::NoteHoles(SequenceId sequence) {
  if (!unified_) return;
  for (int other = 0; other < int(sequences_.size()); ++other) {
    if (other != sequence && sequences_[other].length > 0) holes_ = true;
  }
}

// Rewrites every sequence, which moves it to the lowest free cells: after the last one no hole is left, because whoever
// moves takes all free cells below its last one. Shared cells become copies; the pool has room for all sequences in
// full length.
Status LlamaRuntime::CloseHoles() {
  if (!holes_) return Ok();
  for (int sequence = 0; sequence < int(sequences_.size()); ++sequence) {
    if (sequences_[sequence].length == 0) continue;
    LYNX_ASSIGN_OR_RETURN(const SequenceState state, ReadState(sequence));
    LYNX_RETURN_IF_ERROR(WriteState(sequence, state_, state.token_count));
  }
  holes_ = false;
  return Ok();
}

Result<SequenceState> LlamaRuntime::ReadState(llama_seq_id sequence) {
  return Guarded([&]() -> Result<SequenceState> {
    TakeLlamaError("");
    state_.resize(llama_state_seq_get_size(context_.get(), sequence));
    const std::size_t bytes = llama_state_seq_get_data(context_.get(), reinterpret_cast<std::uint8_t*>(state_.data()),
                                                       state_.size(), sequence);
    if (bytes == 0 || bytes != state_.size()) {
      return EngineError("llama.cpp can't read a sequence: " + TakeLlamaError("no reason given"));
    }
    return layout_.Parse(state_);
  });
}

Status LlamaRuntime::WriteState(SequenceId sequence, const std::vector<std::byte>& bytes, int length) {
  const Status status = Guarded([&]() -> Status {
    TakeLlamaError("");
    const std::size_t taken = llama_state_seq_set_data(
        context_.get(), reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), sequence);
    if (taken != bytes.size()) {
      return EngineError("llama.cpp can't write a sequence, which is now empty: " + TakeLlamaError("no reason given"));
    }
    return Ok();
  });
  if (!status.ok()) {
    llama_memory_seq_rm(llama_get_memory(context_.get()), sequence, -1, -1);
    NoteHoles(sequence);
  }
  sequences_[sequence].length = status.ok() ? length : 0;
  return status;
}

Status LlamaRuntime::CopyPrefix(SequenceId from, SequenceId to, int length) {
  if (!IsOpen(from)) return UnknownSequence(from);
  if (!IsOpen(to)) return UnknownSequence(to);
  if (sequences_[to].length != 0) return Invalid("the sequence to copy to is not empty");
  if (length < 0 || length > sequences_[from].length) {
    return Invalid("can't copy " + std::to_string(length) + " tokens of a sequence of " +
                   std::to_string(sequences_[from].length));
  }
  if (length == 0) return Ok();
  if (unified_) {
    llama_memory_seq_cp(llama_get_memory(context_.get()), from, to, 0, length);
    sequences_[to].length = length;
    return Ok();
  }
  CacheBlock block(info_.shape, 0, length);
  LYNX_RETURN_IF_ERROR(ReadBlock(from, &block));
  return WriteBlock(to, block);
}

// A sequence of the pool gives its range to the spare sequence, so that only this is read; otherwise the whole sequence
// is read (llama.cpp can't read a range) and the range copied out.
Status LlamaRuntime::ReadBlock(SequenceId sequence, CacheBlock* block) {
  if (!IsOpen(sequence)) return UnknownSequence(sequence);
  if (block->shape() != info_.shape) return Invalid("the block has another shape than the engine's cache");
  const int first = block->first_token();
  const int count = block->token_count();
  if (count > sequences_[sequence].length - first) {
    return Invalid("tokens " + std::to_string(first) + " to " + std::to_string(std::int64_t{first} + count) +
                   " of a sequence of " + std::to_string(sequences_[sequence].length) + " can't be read");
  }
  if (count == 0) return Ok();
  llama_memory_t memory = llama_get_memory(context_.get());
  const llama_seq_id source = unified_ ? llama_seq_id(sequences_.size()) : sequence;
  if (unified_) llama_memory_seq_cp(memory, sequence, source, first, first + count);
  const Result<SequenceState> state = ReadState(source);
  if (unified_) llama_memory_seq_rm(memory, source, -1, -1);
  if (!state.ok()) return state.status();
  if (first < state->first_token || first + count > state->first_token + state->token_count) {
    return EngineError("llama.cpp returned other tokens than it was asked for");
  }
  for (int layer = 0; layer < layout_.layers(); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const std::span<std::byte> rows = block->Rows(layer, kind);
      if (rows.empty()) continue;
      const std::size_t skipped = std::size_t(first - state->first_token) * layout_.RowBytes(layer, kind);
      std::memcpy(rows.data(), state_.data() + layout_.RowsOffset(*state, layer, kind) + skipped, rows.size());
    }
  }
  return Ok();
}

Status LlamaRuntime::CheckBlock(const CacheBlock& block) const {
  if (block.shape() != info_.shape) return Invalid("the block has another shape than the engine's cache");
  for (int layer = 0; layer < layout_.layers(); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      if (AllFinite(block.Rows(layer, kind))) continue;
      return Corrupt(std::string(kind == KvKind::kKey ? "K" : "V") + " of layer " + std::to_string(layer) +
                     " holds a value that is not finite");
    }
  }
  return Ok();
}

// llama.cpp can only replace a whole sequence: tokens outside the block are read first, then everything is written.
Status LlamaRuntime::WriteBlock(SequenceId sequence, const CacheBlock& block) {
  if (!IsOpen(sequence)) return UnknownSequence(sequence);
  const int first = block.first_token();
  const int count = block.token_count();
  const int length = sequences_[sequence].length;
  if (first > length) {
    return Invalid("a block that begins at token " + std::to_string(first) + " would leave a gap behind the " +
                   std::to_string(length) + " tokens of the sequence");
  }
  if (count > info_.max_tokens - first) {
    return LimitExceeded("the context of " + std::to_string(info_.max_tokens) + " tokens is too small for the block");
  }
  LYNX_RETURN_IF_ERROR(CheckBlock(block));
  if (count == 0) return Ok();

  return Guarded([&]() -> Status {
    const int end = first + count;
    SequenceState old;
    if (first > 0 || end < length) {
      LYNX_ASSIGN_OR_RETURN(old, ReadState(sequence));
      if (old.first_token != 0 || old.token_count != length) {
        return EngineError("llama.cpp returned other tokens than the sequence has");
      }
    }
    const SequenceState state{std::min(sequence, layout_.streams() - 1), 0, std::max(length, end)};
    layout_.Format(state, &composed_);
    for (int layer = 0; layer < layout_.layers(); ++layer) {
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        const std::span<const std::byte> rows = block.Rows(layer, kind);
        if (rows.empty()) continue;
        const std::size_t row = layout_.RowBytes(layer, kind);
        std::byte* to = composed_.data() + layout_.RowsOffset(state, layer, kind);
        std::memcpy(to + row * std::size_t(first), rows.data(), rows.size());
        if (old.token_count == 0) continue;
        const std::byte* from = state_.data() + layout_.RowsOffset(old, layer, kind);
        std::memcpy(to, from, row * std::size_t(first));
        if (end < length) {
          std::memcpy(to + row * std::size_t(end), from + row * std::size_t(end), row * std::size_t(length - end));
        }
      }
    }
    return WriteState(sequence, composed_, state.token_count);
  });
}

}  // namespace lynx
