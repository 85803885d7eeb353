// A link of a given rate and delay between two TCP endpoints: a proxy with a thread of its own. Both directions have
// the rate and a buffer of 64 KiB, or 4 ms at the rate; all connections share them. The sender's socket queue, its
// congestion control and its low water stay real, which is why this is a proxy and not a sleep inside the sender.
#pragma once

#include <memory>
#include <string>

#include "lynx/result.h"
#include "lynx/transfer.h"

namespace lynx {

struct LinkOptions {
  std::string listen = "127.0.0.1:0";
  std::string to;              // where connections are passed on
  double bits_per_second = 0;  // 0: unlimited
  TimeNs delay = 0;            // one way
};

class LinkEmulator {
 public:
  static Result<std::unique_ptr<LinkEmulator>> Start(const LinkOptions& options);
  ~LinkEmulator();
  const std::string& listen_address() const;

 private:
  class Impl;
  explicit LinkEmulator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// "100mbit", "1.5gbit", "250kbit" in bits per second; "0" or "unlimited". kInvalid with an example otherwise.
Result<double> ParseBitRate(std::string_view text);
// "1ms", "250us", "0.5s", "0".
Result<TimeNs> ParseDuration(std::string_view text);

}  // namespace lynx
