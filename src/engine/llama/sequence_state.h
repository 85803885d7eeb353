// The bytes of llama_state_seq_get_data and _set_data (llama.cpp v0.5.0, a plain KV cache with flash attention), read
// and written here. They carry no version and no model, so they never leave the process.
//
//   u32 magic | i32 sequence (ignored when read)
//   u32 streams
//   per stream: u32 cells; nothing more if 0, else
//     per cell, in cell order: i32 position | u32 1 | i32 sequence
//     u32 0 (V is not transposed) | u32 layers
//     per layer: i32 element type | u64 row bytes | one row of K per cell
//     per layer: the same for V; models whose cache has K only (MLA) have none of these records
// All integers in host order, no padding. A sequence lives in one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

// The state of one sequence: what the layout finds in bytes, or plans for them.
struct SequenceState {
  int stream = 0;
  int first_token = 0;  // cells hold positions first_token…, in this order
  int token_count = 0;
};

class StateLayout {
 public:
  // Learns the layout from the state of a sequence of exactly one token. kUnsupported if it is not the table above:
  // another kind of memory, another llama.cpp.
  static Result<StateLayout> Discover(std::span<const std::byte> state);

  int layers() const { return int(key_bytes_.size()); }
  int streams() const { return streams_; }
  int element_type() const { return element_type_; }  // ggml_type
  // Bytes of one token's row; 0 for V where the cache has K only.
  std::size_t RowBytes(int layer, KvKind kind) const;

  std::size_t Bytes(int token_count) const;

  // Checks every field. kEngine if one differs from the layout, or if the positions do not rise by one from cell to
  // cell: then llama.cpp did something that this engine does not expect. An empty sequence gives token_count 0.
  Result<SequenceState> Parse(std::span<const std::byte> bytes) const;

  // Sizes `bytes` and writes everything but the rows. Keeps the capacity of `bytes`.
  void Format(const SequenceState& state, std::vector<std::byte>* bytes) const;

  // The rows of one layer and kind inside the bytes of a state: token_count * RowBytes. Needs token_count > 0.
  std::size_t RowsOffset(const SequenceState& state, int layer, KvKind kind) const;

 private:
  bool has_values() const { return !value_bytes_.empty(); }

  int streams_ = 1;
  int element_type_ = 0;
  std::uint32_t magic_ = 0;
  std::vector<std::size_t> key_bytes_;
  std::vector<std::size_t> value_bytes_;  // empty: K only
};

}  // namespace lynx
