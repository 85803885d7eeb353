// Outcomes: every function that can fail because of input from outside returns a Status or a Result<T>.
// The library neither throws nor prints; codes say what the caller can do.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace lynx {

// Values are stable: they cross the wire in ABORT and ERROR frames.
enum class ErrorCode : std::uint8_t {
  kOk = 0,
  kCorrupt = 1,      // bytes fail a check: ask again or give up, never use them
  kUnsupported = 2,  // well formed, but not something this build or peer can do
  kInvalid = 3,      // the caller's argument or configuration is wrong
  kLimit = 4,        // a named limit would be exceeded, or no room is left: try later or smaller
  kIo = 5,           // the network or the disk failed, or the peer is gone
  kEngine = 6,       // the model runtime failed
};

std::string_view ErrorCodeName(ErrorCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  // One line, no trailing period, says what to do where that is known.
  const std::string& message() const { return message_; }
  // "corrupt: page stream checksum differs", "ok".
  std::string ToString() const;

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

inline Status Ok() { return {}; }
inline Status Corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }
inline Status Unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }
inline Status Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }
inline Status LimitExceeded(std::string message) { return {ErrorCode::kLimit, std::move(message)}; }
inline Status IoError(std::string message) { return {ErrorCode::kIo, std::move(message)}; }
inline Status EngineError(std::string message) { return {ErrorCode::kEngine, std::move(message)}; }

// A value or the Status that says why there is none. Reading the value of a failed Result aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<1>, std::move(value)) {}        // NOLINT: implicit on purpose
  Result(Status status) : state_(std::in_place_index<0>, std::move(status)) {  // NOLINT
    if (std::get<0>(state_).ok()) std::abort();
  }

  bool ok() const { return state_.index() == 1; }
  Status status() const { return ok() ? Status() : std::get<0>(state_); }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T value() && { return std::move(Checked()); }  // a value, so that a range-for over a temporary Result is safe
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    if (!ok()) std::abort();
    return std::get<1>(state_);
  }
  std::variant<Status, T> state_;
};

}  // namespace lynx
