// A TransferNode on real sockets: one thread that reads, writes and keeps time, so that heartbeats never wait for a
// model or a codec.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lynx/result.h"
#include "lynx/transfer.h"
#include "net/socket.h"

namespace lynx {

struct NetOptions {
  NodeConfig node;
  std::string listen;  // empty: outgoing connections only
  TcpOptions tcp;
};

class NetNode {
 public:
  // Called on the network thread, must not block; may call the node.
  using Handler = std::function<void(TransferNode& node, TransferEvent event, TimeNs now)>;
  using Task = std::function<void(TransferNode& node, TimeNs now)>;

  static Result<std::unique_ptr<NetNode>> Start(const NetOptions& options, Handler handler);
  // Stops the thread and closes every connection; tasks that wait are dropped.
  ~NetNode();

  // Where it listens, with the port that was really taken.
  const std::string& listen_address() const;

  // Connects (blocking the caller, not the network thread); PeerUp or PeerDown follows. kIo when nobody is there.
  Result<PeerId> Connect(const std::string& address, TimeNs timeout);

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
