// Little-endian bytes: a writer that appends, a reader that never reads past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lynx {

template <typename T>
constexpr T LoadLittle(const std::byte* from) {
  static_assert(std::is_integral_v<T>);
  std::make_unsigned_t<T> value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= std::make_unsigned_t<T>(std::make_unsigned_t<T>(std::to_integer<std::uint8_t>(from[i])) << (8 * i));
  }
  return T(value);
}

template <typename T>
constexpr void StoreLittle(T value, std::byte* to) {
  static_assert(std::is_integral_v<T>);
  const auto bits = std::make_unsigned_t<T>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i) to[i] = std::byte(std::uint8_t(bits >> (8 * i)));
}

class ByteWriter {
 public:
  explicit ByteWriter(std::vector<std::byte>* out) : out_(out) {}
  template <typename T>
  void Put(T value) {
    out_->resize(out_->size() + sizeof(T));
    StoreLittle(value, out_->data() + out_->size() - sizeof(T));
  }
  void PutBytes(std::span<const std::byte> bytes) { out_->insert(out_->end(), bytes.begin(), bytes.end()); }
  // u32 length, then the bytes.
  void PutString(std::string_view text) {
    Put(std::uint32_t(text.size()));
    PutBytes(std::as_bytes(std::span(text.data(), text.size())));
  }

 private:
  std::vector<std::byte>* out_;
};

// After the first read past the end every read gives zero and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  std::size_t left() const { return bytes_.size(); }

  template <typename T>
  T Get() {
    const auto bytes = GetBytes(sizeof(T));
    return ok_ ? LoadLittle<T>(bytes.data()) : T(0);
  }
  std::span<const std::byte> GetBytes(std::size_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  // A string of at most `limit` bytes.
  std::string GetString(std::size_t limit) {
    const auto size = Get<std::uint32_t>();
    if (size > limit) ok_ = false;
    const auto bytes = GetBytes(size);
    return ok_ ? std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) : std::string();
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace lynx
