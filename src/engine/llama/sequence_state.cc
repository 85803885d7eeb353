#include "engine/llama/sequence_state.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "base/check.h"

namespace lynx {
namespace {

constexpr std::size_t kCellBytes = 12;    // position, sequence count, sequence
constexpr std::size_t kRecordBytes = 12;  // element type, row bytes
constexpr std::uint32_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxStreams = 4096;
constexpr std::uint64_t kMaxRowBytes = std::uint64_t{1} << 24;

// Host order. After the first read past the end every read gives zero and ok() is false.
class StateReader {
 public:
  explicit StateReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    T value{};
    if (bytes_.size() < sizeof value) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  void Skip(std::size_t count) {
    ok_ = ok_ && count <= bytes_.size();
    bytes_ = ok_ ? bytes_.subspan(count) : std::span<const std::byte>();
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

class StateWriter {
 public:
  explicit StateWriter(std::byte* to) : to_(to) {}
  template <typename T>
  void Put(std::type_identity_t<T> value) {
    std::memcpy(to_, &value, sizeof value);
    to_ += sizeof value;
  }
  void Skip(std::size_t count) { to_ += count; }

 private:
  std::byte* to_;
};

Status Unknown(const char* what) {
  return Unsupported(std::string("this model's cache is not a plain KV cache of llama.cpp v0.5.0: unexpected ") + what);
}
Status Unexpected(const char* what) {
  return EngineError(std::string("llama.cpp returned a sequence state with an unexpected ") + what);
}

}  // namespace

Result<StateLayout> StateLayout::Discover(std::span<const std::byte> state) {
  StateLayout layout;
  StateReader reader(state);
  layout.magic_ = reader.Get<std::uint32_t>();
  reader.Get<std::int32_t>();
  const auto streams = reader.Get<std::uint32_t>();
  if (!reader.ok() || streams < 1 || streams > kMaxStreams) return Unknown("stream count");
  layout.streams_ = int(streams);
  std::uint32_t stream = 0;
  std::uint32_t cells = 0;
  while (cells == 0 && stream < streams) {
    cells = reader.Get<std::uint32_t>();
    ++stream;
  }
  if (!reader.ok() || cells != 1) return Unknown("cell count");
  if (reader.Get<std::int32_t>() != 0 || reader.Get<std::uint32_t>() != 1) return Unknown("cell");
  reader.Get<std::int32_t>();
  if (reader.Get<std::uint32_t>() != 0) return Unknown("layout of V");
  const auto layers = reader.Get<std::uint32_t>();
  if (!reader.ok() || layers < 1 || layers > kMaxLayers) return Unknown("layer count");
  const std::size_t behind = 4 * std::size_t(streams - stream);  // cell counts of the streams behind
  for (std::vector<std::size_t>* rows : {&layout.key_bytes_, &layout.value_bytes_}) {
    if (rows == &layout.value_bytes_ && reader.left() == behind) break;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const auto type = reader.Get<std::int32_t>();
      const auto row = reader.Get<std::uint64_t>();
      if (rows->empty() && rows == &layout.key_bytes_) layout.element_type_ = type;
      if (!reader.ok() || row > kMaxRowBytes || type != layout.element_type_) return Unknown("row");
      rows->push_back(row);
      reader.Skip(row);
    }
  }
  for (; stream < streams; ++stream) {
    if (reader.Get<std::uint32_t>() != 0) return Unknown("second stream");
  }
  if (!reader.ok() || reader.left() != 0) return Unknown("length (sliding-window and other mixed caches have more)");
  return layout;
}

std::size_t StateLayout::RowBytes(int layer, KvKind kind) const {
  if (kind == KvKind::kKey) return key_bytes_[layer];
  return has_values() ? value_bytes_[layer] : 0;
}

std::size_t StateLayout::Bytes(int token_count) const {
  const std::size_t head = 12 + 4 * std::size_t(streams_);
  if (token_count == 0) return head;
  std::size_t row = 0;
  for (std::size_t bytes : key_bytes_) row += bytes;
  for (std::size_t bytes : value_bytes_) row += bytes;
  return head + 8 + kRecordBytes * (key_bytes_.size() + value_bytes_.size()) +
         (kCellBytes + row) * std::size_t(token_count);
}

std::size_t StateLayout::RowsOffset(const SequenceState& state, int layer, KvKind kind) const {
  LYNX_CHECK(state.token_count > 0);
  const auto tokens = std::size_t(state.token_count);
  std::size_t offset = 12 + 4 * (std::size_t(state.stream) + 1) + kCellBytes * tokens + 8 + kRecordBytes;
  if (kind == KvKind::kValue) {
    for (std::size_t bytes : key_bytes_) offset += kRecordBytes + bytes * tokens;
  }
  const std::vector<std::size_t>& rows = kind == KvKind::kKey ? key_bytes_ : value_bytes_;
  for (int before = 0; before < layer; ++before) offset += kRecordBytes + rows[before] * tokens;
  return offset;
}

Result<SequenceState> StateLayout::Parse(std::span<const std::byte> bytes) const {
  SequenceState state;
  StateReader reader(bytes);
  if (reader.Get<std::uint32_t>() != magic_) return Unexpected("magic");
  reader.Get<std::int32_t>();
  if (reader.Get<std::uint32_t>() != std::uint32_t(streams_)) return Unexpected("stream count");
  for (int stream = 0; stream < streams_; ++stream) {
    const auto cells = reader.Get<std::uint32_t>();
    if (cells == 0) continue;
    if (state.token_count != 0 || cells > bytes.size() / kCellBytes) return Unexpected("cell count");
    state.stream = stream;
    state.token_count = int(cells);
    for (std::uint32_t cell = 0; cell < cells; ++cell) {
      const auto position = reader.Get<std::int32_t>();
      if (cell == 0) state.first_token = position;
      if (position < 0 || position != state.first_token + int(cell)) return Unexpected("order of cells");
      if (reader.Get<std::uint32_t>() != 1) return Unexpected("cell");
      reader.Get<std::int32_t>();
    }
    if (reader.Get<std::uint32_t>() != 0) return Unexpected("layout of V");
    if (reader.Get<std::uint32_t>() != std::uint32_t(layers())) return Unexpected("layer count");
    for (const std::vector<std::size_t>* rows : {&key_bytes_, &value_bytes_}) {
      for (std::size_t row : *rows) {
        if (reader.Get<std::int32_t>() != element_type_) return Unexpected("element type");
        if (reader.Get<std::uint64_t>() != row) return Unexpected("row size");
        reader.Skip(row * cells);
      }
    }
  }
  if (!reader.ok() || reader.left() != 0) return Unexpected("length");
  return state;
}

void StateLayout::Format(const SequenceState& state, std::vector<std::byte>* bytes) const {
  bytes->resize(Bytes(state.token_count));
  StateWriter writer(bytes->data());
  writer.Put<std::uint32_t>(magic_);
  writer.Put<std::int32_t>(0);
  writer.Put<std::uint32_t>(std::uint32_t(streams_));
  for (int stream = 0; stream < streams_; ++stream) {
    const int cells = stream == state.stream ? state.token_count : 0;
    writer.Put<std::uint32_t>(std::uint32_t(cells));
    if (cells == 0) continue;
    for (int cell = 0; cell < cells; ++cell) {
      writer.Put<std::int32_t>(state.first_token + cell);
      writer.Put<std::uint32_t>(1);
      writer.Put<std::int32_t>(0);
    }
    writer.Put<std::uint32_t>(0);
    writer.Put<std::uint32_t>(std::uint32_t(layers()));
    for (const std::vector<std::size_t>* rows : {&key_bytes_, &value_bytes_}) {
      for (std::size_t row : *rows) {
        writer.Put<std::int32_t>(element_type_);
        writer.Put<std::uint64_t>(row);
        writer.Skip(row * std::size_t(cells));
      }
    }
  }
}

}  // namespace lynx
