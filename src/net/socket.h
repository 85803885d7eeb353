// TCP sockets: the few calls that nodes and the link emulator need. Everything is non-blocking but ConnectTo.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lynx/result.h"
#include "lynx/transfer.h"

namespace lynx {

// CLOCK_MONOTONIC.
TimeNs MonotonicNow();
// From the system's source: nobody can guess it.
std::uint64_t RandomNumber();

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct TcpOptions {
  // "cubic", "bbr", …; "system" leaves the kernel's default. BBR without the fq qdisc paces loopback and shaped links
  // far below their rate (docs/design.md §7), so cubic is asked for; a kernel that refuses it keeps its default.
  std::string congestion_control = "cubic";
  int receive_buffer_bytes = 0;  // 0: the kernel tunes it
};

// "host:port", "[v6]:port" or ":port" (all interfaces). kInvalid with an example otherwise.
struct Address {
  std::string host;
  std::string port;
};
Result<Address> ParseAddress(std::string_view text);
// "localhost", 127.0.0.0/8, ::1. Other names count as not, wherever they lead.
bool IsLoopback(const std::string& host);

// kIo with the reason: "127.0.0.1:7000: address already in use; choose another port or stop what listens there".
Result<Fd> ListenOn(std::string_view address);
// Where a listening socket really is ("127.0.0.1:41234" for a port of 0).
std::string LocalAddress(const Fd& listener);
// Blocks for at most `timeout`. kIo: "127.0.0.1:7000: connection refused; is `lynx prefill` running there?".
Result<Fd> ConnectTo(std::string_view address, TimeNs timeout, const TcpOptions& options);
// The other end of a connection, numeric.
std::string PeerAddress(const Fd& socket);
// The next waiting connection; invalid when there is none or the process has no descriptor left.
Fd AcceptFrom(const Fd& listener, const TcpOptions& options);

// Bytes moved; 0 when the call would block. kIo when the connection is gone ("closed by the peer" at its end).
Result<std::size_t> ReadSome(const Fd& socket, std::span<std::byte> into);
Result<std::size_t> WriteSome(const Fd& socket, std::span<const std::byte> from);

// Block until the socket can be read or written without waiting (its end and errors count), or the time is over: false.
bool WaitReadable(const Fd& socket, TimeNs timeout);
bool WaitWritable(const Fd& socket, TimeNs timeout);

// The peer has ended its side or is gone, even if not all of its bytes were read.
bool PeerLeft(const Fd& socket);

// Tells the peer that nothing more comes; reading goes on.
void EndWriting(const Fd& socket);
// No more can be read, by nobody: threads that wait for it wake. For a listener: no more can be accepted.
void EndReading(const Fd& socket);

// The socket takes no more data while this much is unsent, so that a later choice can still go first.
void SetNotSentLowWater(const Fd& socket, std::uint32_t bytes);

}  // namespace lynx
