// How far a transfer is.
#pragma once

#include <cstdint>

namespace lynx {

struct TransferProgress {
  bool prompt_read = false;          // token 0 is known
  int stream = 0;                    // the first that is not complete
  std::uint64_t bytes_received = 0;  // page streams
  std::uint64_t bytes_expected = 0;  // in all, estimated; 0: no offer yet
  std::uint64_t bytes_left() const { return bytes_expected > bytes_received ? bytes_expected - bytes_received : 0; }
};

}  // namespace lynx
