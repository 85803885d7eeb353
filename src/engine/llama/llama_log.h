// llama.cpp's log, which is one per process: kept off stderr, handed to whoever listens, the last error remembered.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lynx {

using LogListener = std::function<void(std::string_view)>;

// While one lives, its listener (may be empty) gets every line. The first one silences stderr for good.
class LlamaLog {
 public:
  explicit LlamaLog(LogListener listener);
  ~LlamaLog();
  LlamaLog(const LlamaLog&) = delete;
  LlamaLog& operator=(const LlamaLog&) = delete;

 private:
  LogListener listener_;
};

// The last error line that llama.cpp logged on this thread since the previous call, or `fallback`.
std::string TakeLlamaError(std::string_view fallback);

}  // namespace lynx
