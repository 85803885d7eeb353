#include "speculate/stop.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace lynx {

Status CheckStops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopStrings) {
    return LimitExceeded("at most " + std::to_string(kMaxStopStrings) + " stop strings, not " +
                         std::to_string(stops.size()));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) return Invalid("a stop string is empty");
    if (stop.size() > kMaxStopBytes) {
      return LimitExceeded("a stop string has at most " + std::to_string(kMaxStopBytes) + " bytes, not " +
                           std::to_string(stop.size()));
    }
  }
  return Ok();
}

std::size_t WholeCharacters(std::string_view text) {
  // Only the last three bytes can belong to an unfinished character.
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = std::uint8_t(text[text.size() - back]);
    if ((byte & 0xc0u) == 0x80u) continue;  // continues a character that begins further left
    const std::size_t length = byte >= 0xf0u && byte <= 0xf4u ? 4 : byte >= 0xe0u ? 3 : byte >= 0xc2u ? 2 : 1;
    const bool unfinished = byte >= 0xc2u && byte <= 0xf4u && length > back;
    return unfinished ? text.size() - back : text.size();
  }
  return text.size();
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  LYNX_CHECK(CheckStops(stops_).ok());
}

std::string StopMatcher::Show(std::size_t bytes) {
  std::string text = held_.substr(0, WholeCharacters(std::string_view(held_).substr(0, bytes)));
  held_.erase(0, text.size());
  shown_bytes_ += text.size();
  return text;
}

// A match lies wholly within held_, since every beginning of one has been held back.
std::string StopMatcher::Feed(std::string_view bytes) {
  if (stopped_) return {};
  held_ += bytes;
  std::size_t begin = held_.size();
  std::size_t end = held_.size() + 1;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin)) {
      begin = at;
      end = at + stop.size();
    }
  }
  if (end <= held_.size()) {
    stopped_ = true;
    std::string text = Show(begin);
    held_.clear();
    return text;
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) keep = size;
    }
  }
  return Show(held_.size() - keep);
}

std::string StopMatcher::Flush() {
  std::string text = Show(held_.size());
  held_.clear();
  return text;
}

}  // namespace lynx
