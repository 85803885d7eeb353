// Stop strings in committed text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/result.h"

namespace lynx {

inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopBytes = 256;  // of one stop string

// kInvalid for an empty stop string, kLimit for too many or too long ones.
Status CheckStops(const std::vector<std::string>& stops);

// The length of the longest prefix of `text` that does not end inside a UTF-8 character. Bytes that can't begin or
// continue one count as characters of their own.
std::size_t WholeCharacters(std::string_view text);

// Is fed the bytes of committed tokens and says what may be shown: neither a stop string nor a beginning of one, and
// never part of a UTF-8 character. A value.
class StopMatcher {
 public:
  // `stops` must pass CheckStops; may be empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // The bytes that may be shown now. A stop string that is complete ends the text before its first byte: stopped() is
  // true from then on and nothing more is shown. Of several, the one whose last byte comes first counts, then the
  // longest.
  std::string Feed(std::string_view bytes);
  // The text ended otherwise: what was held back, in whole characters. Empty once stopped.
  std::string Flush();

  bool stopped() const { return stopped_; }
  // Bytes given out so far; once stopped, the length of the text (an unfinished character right before the stop string
  // is dropped).
  std::size_t shown_bytes() const { return shown_bytes_; }

 private:
  std::string Show(std::size_t bytes);

  std::vector<std::string> stops_;
  std::string held_;
  std::size_t shown_bytes_ = 0;
  bool stopped_ = false;
};

}  // namespace lynx
