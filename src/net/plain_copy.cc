#include "net/plain_copy.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "net/socket.h"

namespace lynx {
namespace {

constexpr std::size_t kCopyBuffer = 64 << 10;
constexpr TimeNs kPatience = 5 * kSecondNs;

// Accepts one connection and writes `bytes` zeros into it.
void Serve(const Fd& listener, std::uint64_t bytes) {
  if (!WaitReadable(listener, kPatience)) return;
  const Fd socket = AcceptFrom(listener, {});
  if (!socket.valid()) return;
  const std::vector<std::byte> zeros(kCopyBuffer);
  while (bytes > 0) {
    const Result<std::size_t> sent =
        WriteSome(socket, std::span(zeros).first(std::min<std::uint64_t>(bytes, kCopyBuffer)));
    if (!sent.ok() || (*sent == 0 && !WaitWritable(socket, kPatience))) return;
    bytes -= *sent;
  }
  WaitReadable(socket, kPatience);  // the reader closes when it has everything
}

Result<double> Receive(const std::string& address, std::uint64_t bytes) {
  LYNX_ASSIGN_OR_RETURN(const Fd socket, ConnectTo(address, kPatience, {}));
  std::vector<std::byte> buffer(kCopyBuffer);
  std::uint64_t received = 0;
  std::uint64_t first = 0;
  TimeNs start = 0;
  while (received < bytes) {
    if (!WaitReadable(socket, kPatience)) return IoError("the plain copy stalled");
    LYNX_ASSIGN_OR_RETURN(const std::size_t count, ReadSome(socket, buffer));
    received += count;
    if (start == 0 && count > 0) start = MonotonicNow(), first = count;
  }
  return double(received - first) * 8 * double(kSecondNs) / double(std::max<TimeNs>(1, MonotonicNow() - start));
}

}  // namespace

Result<double> PlainCopyRate(LinkOptions options, std::uint64_t bytes) {
  LYNX_ASSIGN_OR_RETURN(const Fd listener, ListenOn("127.0.0.1:0"));
  options.to = LocalAddress(listener);
  options.listen = "127.0.0.1:0";
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<LinkEmulator> link, LinkEmulator::Start(options));
  std::thread source([&listener, bytes] { Serve(listener, bytes); });
  Result<double> rate = Receive(link->listen_address(), bytes);
  source.join();
  return rate;
}

}  // namespace lynx
