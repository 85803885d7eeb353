// A TransferNode on real sockets: one thread that reads, writes and keeps time, so that heartbeats never wait for a
// model or a codec.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lynx/result.h"
#include "lynx/transfer.h"
#include "net/socket.h"
#include "net/tls.h"

namespace lynx {

struct NetOptions {
  NodeConfig node;
  std::string listen;  // empty: outgoing connections only
  TcpOptions tcp;
  TlsOptions tls;  // needed for anything but loopback (CheckProtected)
  // Connections in all, and those whose TLS handshake is not over: who comes on top is closed at once. A handshake
  // takes two round trips and 1 ms of this thread, so 64 unfinished ones are a thousand good peers per second.
  int max_connections = 256;
  int max_handshakes = 64;
  TimeNs handshake_timeout = 5 * kSecondNs;
  // One line for a connection that was refused, ten per second at most, and for certificates that were read again. On
  // the network thread. May be empty.
  std::function<void(std::string_view line)> log;
};

struct NetStats {
  int connections = 0;        // all that are open
  int handshakes = 0;         // of these, not known to the TransferNode yet
  std::uint64_t refused = 0;  // since the start
};

class NetNode {
 public:
  // Called on the network thread, must not block; may call the node.
  using Handler = std::function<void(TransferNode& node, TransferEvent event, TimeNs now)>;
  using Task = std::function<void(TransferNode& node, TimeNs now)>;

  // kInvalid when the address to listen on needs TLS or a certificate file is wrong.
  static Result<std::unique_ptr<NetNode>> Start(const NetOptions& options, Handler handler);
  // Stops the thread and closes every connection; tasks that wait are dropped.
  ~NetNode();

  // Where it listens, with the port that was really taken.
  const std::string& listen_address() const;

  // Connects (blocking the caller, not the network thread); PeerUp or PeerDown follows. kIo when nobody is there or the
  // peer's certificate is refused; kInvalid when the address needs TLS. A peer that refuses this node's certificate
  // says so in PeerDown.
  Result<PeerId> Connect(const std::string& address, TimeNs timeout);

  // Not from the network thread.
  NetStats stats();

  // Runs the task on the network thread, in order.
  void Post(Task task);
  // Runs the task there and waits for its end. Not from the network thread.
  void Call(const Task& task);

 private:
  class Impl;
  explicit NetNode(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx
