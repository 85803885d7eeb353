#include "lynx/result.h"

namespace lynx {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kInvalid:
      return "invalid";
    case ErrorCode::kLimit:
      return "limit";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kEngine:
      return "engine";
  }
  return "unknown";
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(ErrorCodeName(code_)) + ": " + message_;
}

}  // namespace lynx
