// What /metrics tells, in Prometheus' text format.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "serve/decode_node.h"

namespace lynx {

// How a request for an answer ended.
enum class Outcome { kDone, kRefused, kLeft, kFailed };

class Metrics {
 public:
  void CountRequest(Outcome outcome);
  void CountAnswer(int prompt_tokens, const GenerateResult& result);
  // With what the engine and the front count themselves; `open` requests are under way.
  std::string Text(const EngineLoopStats& engine, int open, bool ready) const;

 private:
  // Upper bounds in seconds; one bucket more for what is above.
  static constexpr std::array kBounds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0};
  struct Histogram {
    std::array<std::uint64_t, kBounds.size() + 1> counts{};
    double sum = 0;
    void Add(double seconds);
    void AppendTo(std::string* text, const char* name, const char* help) const;
  };

  mutable std::mutex mutex_;
  std::array<std::uint64_t, 4> outcomes_{};
  std::uint64_t prompt_tokens_ = 0, kept_tokens_ = 0, reused_tokens_ = 0, committed_ = 0, drafted_ = 0, accepted_ = 0,
                retries_ = 0, anchors_first_ = 0;
  std::vector<std::uint64_t> stream_bytes_;
  Histogram ttft_, first_committed_, anchor_, residual_, verify_;
};

}  // namespace lynx
