// Who may use the HTTP front: keys, of which only SHA-256 hashes are kept.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/result.h"

namespace lynx {

class ApiKeys {
 public:
  // One key per line: the SHA-256 hash of it in 64 hex digits and, if wanted, a name behind a space. Empty lines and
  // lines that begin with # are passed over. kInvalid with the number of a line that is neither, or without any key.
  static Result<ApiKeys> Parse(std::string_view text);

  // Whether an Authorization header ("Bearer KEY") has one of the keys. Takes the same time whichever it is.
  bool Accept(std::string_view authorization) const;

 private:
  using Hash = std::array<std::uint8_t, 32>;
  std::vector<Hash> hashes_;
};

}  // namespace lynx
