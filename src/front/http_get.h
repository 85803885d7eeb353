// One GET request to a node's own HTTP server, for commands that look at it.
#pragma once

#include <string>

#include "lynx/result.h"

namespace lynx {

// The body of `path` at `address` (HOST:PORT), with `key` (may be empty) as bearer. kIo when nobody answers within a
// few seconds, kUnsupported for another status than 200, kInvalid for what is no address.
Result<std::string> HttpGet(const std::string& address, const std::string& path, const std::string& key);

}  // namespace lynx
