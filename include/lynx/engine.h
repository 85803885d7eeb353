// Engine: a model runtime whose KV cache can be read, written and truncated. One engine belongs to one thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"
#include "lynx/sampling.h"

namespace lynx {

struct EngineInfo {
  std::string model;     // "SmolLM2-135M-Instruct"
  std::string revision;  // identifies the weights: two nodes with equal model and revision hold equal weights
  CacheShape shape;
  int vocab_size = 0;
  int max_sequences = 1;
  int max_tokens = 0;     // context of one sequence, in tokens
  int prefill_batch = 0;  // best number of tokens in one Step for prefill
  int verify_batch = 0;   // most tokens worth verifying in one Step (16 on CPU)
};

using SequenceId = int;

enum class Logits { kNone, kLast, kAll };

// Tokens to append to one sequence at positions Length(sequence)…, and which rows of logits are wanted.
struct StepInput {
  SequenceId sequence = 0;
  std::span<const Token> tokens;
  Logits logits = Logits::kLast;
};

// What attention used of one layer while tokens were fed: for calibration and measurement.
struct LayerProbe {
  int query_heads = 0;
  std::vector<float> queries;       // [token][query head][key_dim], rotated, as they meet K
  std::vector<float> output_norms;  // [query head][value_dim]: Euclidean norm of the output projection's column
  float residual_rms = 0;           // of the residual stream behind attention, over the tokens
};

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;

  // --- text: any thread may call these at any time ---
  // With `special`, control tokens written in the text (<|im_start|>) become tokens; a model that begins sequences
  // with a token of its own gets it here.
  virtual Result<std::vector<Token>> Tokenize(std::string_view text, bool special) const = 0;
  // The bytes of one token; possibly part of a UTF-8 character. Empty for control tokens and unknown ids.
  virtual std::string TokenText(Token token) const = 0;
  virtual bool IsEndOfText(Token token) const = 0;
  // The model's own chat template around the messages, with the beginning of the answer, ready for Tokenize(…, special
  // = true). kUnsupported when the model has none.
  virtual Result<std::string> ChatPrompt(const std::vector<ChatMessage>& messages) const = 0;

  // --- sequences ---
  // kLimit when max_sequences are open.
  virtual Result<SequenceId> Open() = 0;
  virtual void Close(SequenceId sequence) = 0;
  virtual int Length(SequenceId sequence) const = 0;

  // Runs all inputs (different sequences) in as few graph runs as the runtime allows. `logits` (may be null if nothing
  // is wanted) is overwritten with the wanted rows of vocab_size floats, in input order. The result of a row does not
  // depend on how tokens were batched (bit for bit; llama: see docs/design.md for the settings that guarantee it).
  // kInvalid for an unknown sequence or token, kLimit when a context is full; on any error no sequence has changed
  // length.
  virtual Status Step(std::span<const StepInput> inputs, std::vector<float>* logits) = 0;

  // As Step for one input without logits, and tells what attention used, layer by layer. kUnsupported when the engine
  // can't.
  virtual Status Probe(const StepInput& /*input*/, std::vector<LayerProbe>* /*layers*/) {
    return Unsupported("this engine can't show what its attention uses");
  }

  // Forgets all tokens from position `length` on. kInvalid if length > Length(sequence).
  virtual Status Truncate(SequenceId sequence, int length) = 0;

  // `to` (empty) becomes a copy of the first `length` tokens of `from`.
  virtual Status CopyPrefix(SequenceId from, SequenceId to, int length) = 0;

  // Fills the block with tokens [block.first_token, +token_count) of the sequence; kInvalid if they are not all there.
  virtual Status ReadBlock(SequenceId sequence, CacheBlock* block) = 0;

  // Writes a block. Its range must begin at or before Length(sequence): tokens are overwritten or appended; tokens
  // behind the range are kept. Cell order stays position order. The engine checks that every value is finite and
  // refuses with kCorrupt before its cache is touched.
  virtual Status WriteBlock(SequenceId sequence, const CacheBlock& block) = 0;
};

}  // namespace lynx
