#include "net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>

#include "base/status_macros.h"

namespace lynx {
namespace {

std::string Reason(int error) { return std::strerror(error); }

struct AddrInfoDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddrInfoList = std::unique_ptr<addrinfo, AddrInfoDeleter>;

Result<AddrInfoList> Resolve(std::string_view text, bool passive) {
  LYNX_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), address.port.c_str(), &hints, &list);
  if (error != 0) return IoError(std::string(text) + ": " + gai_strerror(error));
  return AddrInfoList(list);
}

void Tune(int fd, const TcpOptions& options) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (options.congestion_control != "system") {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, options.congestion_control.data(), options.congestion_control.size());
  }
  if (options.receive_buffer_bytes > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer_bytes, sizeof options.receive_buffer_bytes);
  }
}

std::string AddressOf(const Fd& fd, decltype(getsockname)* get) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (get(fd.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) return "";
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<sockaddr*>(&storage), size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  const bool v6 = storage.ss_family == AF_INET6;
  return (v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

// Waits for the end of a non-blocking connect; 0 or an errno value.
int FinishConnect(int fd, TimeNs timeout) {
  pollfd waiting{fd, POLLOUT, 0};
  const TimeNs end = MonotonicNow() + timeout;
  for (;;) {
    const TimeNs left = end - MonotonicNow();
    if (left <= 0) return ETIMEDOUT;
    const int ready = poll(&waiting, 1, int(left / kMillisecondNs) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errno;
    if (ready > 0) break;
  }
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

bool WaitFor(const Fd& socket, short events, TimeNs timeout) {
  const TimeNs end = MonotonicNow() + timeout;
  for (;;) {
    const TimeNs left = std::max<TimeNs>(end - MonotonicNow(), 0);
    pollfd waiting{socket.get(), events, 0};
    const int ready = poll(&waiting, 1, int((left + kMillisecondNs - 1) / kMillisecondNs));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // what is wrong shows when it is used
    if (left == 0) return false;
  }
}

}  // namespace

TimeNs MonotonicNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return TimeNs{now.tv_sec} * kSecondNs + now.tv_nsec;
}

std::uint64_t RandomNumber() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Result<Address> ParseAddress(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size()) {
    return Invalid("\"" + std::string(text) + "\" is not an address; write host:port, for example 127.0.0.1:7000");
  }
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos ||
      std::stoi(std::string(port)) > 65535) {
    return Invalid("\"" + std::string(port) + "\" is not a port; write a number from 0 to 65535");
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return Address{std::string(host), std::string(port)};
}

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

Result<Fd> ListenOn(std::string_view address) {
  LYNX_ASSIGN_OR_RETURN(const AddrInfoList list, Resolve(address, true));
  int error = 0;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    Fd fd(socket(entry->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd.valid() && bind(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    error = errno;
  }
  const char* advice = error == EADDRINUSE ? "; choose another port or stop what listens there" : "";
  return IoError("can't listen on " + std::string(address) + ": " + Reason(error) + advice);
}

std::string LocalAddress(const Fd& listener) { return AddressOf(listener, getsockname); }
std::string PeerAddress(const Fd& socket) { return AddressOf(socket, getpeername); }

Result<Fd> ConnectTo(std::string_view address, TimeNs timeout, const TcpOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const AddrInfoList list, Resolve(address, false));
  int error = 0;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    Fd fd(socket(entry->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) {
      error = errno;
      continue;
    }
    Tune(fd.get(), options);
    error = connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = FinishConnect(fd.get(), timeout);
    if (error == 0) return fd;
  }
  const char* advice = error == ECONNREFUSED ? "; is `lynx prefill` running there?" : "";
  return IoError("can't connect to " + std::string(address) + ": " + Reason(error) + advice);
}

Fd AcceptFrom(const Fd& listener, const TcpOptions& options) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) Tune(fd.get(), options);
  return fd;
}

Result<std::size_t> ReadSome(const Fd& socket, std::span<std::byte> into) {
  for (;;) {
    const ssize_t count = recv(socket.get(), into.data(), into.size(), 0);
    if (count > 0) return std::size_t(count);
    if (count == 0) return IoError("connection closed by the peer");
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    return IoError("connection lost: " + Reason(errno));
  }
}

Result<std::size_t> WriteSome(const Fd& socket, std::span<const std::byte> from) {
  for (;;) {
    const ssize_t count = send(socket.get(), from.data(), from.size(), MSG_NOSIGNAL);
    if (count >= 0) return std::size_t(count);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return std::size_t{0};
    return IoError("connection lost: " + Reason(errno));
  }
}

bool WaitReadable(const Fd& socket, TimeNs timeout) { return WaitFor(socket, POLLIN | POLLRDHUP, timeout); }
bool WaitWritable(const Fd& socket, TimeNs timeout) { return WaitFor(socket, POLLOUT, timeout); }

bool PeerLeft(const Fd& socket) {
  pollfd state{socket.get(), POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0;
}

void EndWriting(const Fd& socket) { shutdown(socket.get(), SHUT_WR); }
void EndReading(const Fd& socket) { shutdown(socket.get(), SHUT_RD); }

void SetNotSentLowWater(const Fd& socket, std::uint32_t bytes) {
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes);
}

}  // namespace lynx
