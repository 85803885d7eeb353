#include "engine/llama/llama_log.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "llama.h"

namespace lynx {
namespace {

std::mutex listeners_mutex;
std::vector<const LogListener*>& Listeners() {
  static std::vector<const LogListener*> listeners;
  return listeners;
}

thread_local std::string last_error;
thread_local std::string pending_line;

// llama.cpp logs pieces of lines; a piece with a line end completes one.
void OnLog(ggml_log_level level, const char* text, void*) {
  pending_line += text;
  if (pending_line.empty() || pending_line.back() != '\n') return;
  while (!pending_line.empty() && pending_line.back() == '\n') pending_line.pop_back();
  if (level == GGML_LOG_LEVEL_ERROR) last_error = pending_line;
  {
    const std::lock_guard lock(listeners_mutex);
    for (const LogListener* listener : Listeners()) (*listener)(pending_line);
  }
  pending_line.clear();
}

}  // namespace

LlamaLog::LlamaLog(LogListener listener) : listener_(std::move(listener)) {
  static const bool silenced = [] {
    llama_log_set(OnLog, nullptr);
    return true;
  }();
  (void)silenced;
  if (!listener_) return;
  const std::lock_guard lock(listeners_mutex);
  Listeners().push_back(&listener_);
}

LlamaLog::~LlamaLog() {
  const std::lock_guard lock(listeners_mutex);
  std::erase(Listeners(), &listener_);
}

std::string TakeLlamaError(std::string_view fallback) {
  std::string error = last_error.empty() ? std::string(fallback) : std::move(last_error);
  last_error.clear();
  std::replace(error.begin(), error.end(), '\n', ' ');
  return error;
}

}  // namespace lynx
