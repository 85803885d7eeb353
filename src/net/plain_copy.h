// The baseline of every transfer figure: what one plain TCP connection carries over an emulated link.
#pragma once

#include <cstdint>

#include "lynx/result.h"
#include "net/link_emulator.h"

namespace lynx {

// Sends `bytes` over a link of its own (options.to and .listen are ignored) and gives bits per second, from the first
// byte received to the last.
Result<double> PlainCopyRate(LinkOptions options, std::uint64_t bytes);

}  // namespace lynx
