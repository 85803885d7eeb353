// The prefill nodes of a decode node: stays connected to all of them and chooses one per request.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/random.h"
#include "lynx/result.h"
#include "lynx/transfer.h"
#include "net/net_node.h"

namespace lynx {

struct PrefillPoolOptions {
  std::vector<std::string> addresses;
  // More addresses, one per line, "#" begins a comment; read again when it changes. May be empty.
  std::string file;
  // One line per node that comes or goes, on a thread of the pool or the network. May be empty.
  std::function<void(std::string_view line)> log;
};

// All addresses. kInvalid when one can't be one, kIo when the file can't be read.
Result<std::vector<std::string>> AddressesOf(const PrefillPoolOptions& options);

struct PrefillNodeState {
  std::string address;
  bool up = false;
  Status status;    // why not
  int running = 0;  // requests of this decode node
};

class PrefillPool {
 public:
  // Nothing is connected before Start; `net` must be set by then and outlive the pool.
  explicit PrefillPool(const PrefillPoolOptions& options) : options_(options), random_(std::uint64_t(MonotonicNow())) {}
  ~PrefillPool() { Stop(); }
  // kInvalid when an address can't be one, kIo when the file can't be read.
  Status Start(NetNode* net);
  void Stop();

  // --- network thread ---
  void OnUp(PeerId peer) { OnPeer(peer, Ok()); }
  void OnDown(PeerId peer, const Status& why) { OnPeer(peer, why); }

  // --- any other thread ---
  // Ok as soon as one node is up. Otherwise, after the timeout or once every node has failed, the reason of the first.
  Status Await(TimeNs timeout);
  // The node with the fewest requests, by what it says and by what was sent to it; `avoid` (the last one tried) only if
  // there is no other. kIo when none is up. Give says that the request is over.
  Result<PeerId> Take(PeerId avoid);
  void Give(PeerId peer);
  std::vector<PrefillNodeState> States() const;

 private:
  struct Node {
    std::string address;
    bool listed = true;
    bool tried = false;  // has come up or failed at least once
    bool up = false;
    PeerId peer = 0;  // 0: not connected
    Status status = IoError("not connected yet");
    int failures = 0;     // since it was up
    TimeNs next_try = 0;  // when it is not connected
    int running = 0;
  };

  Status ReadList();
  void Loop();
  void TryOne(const std::string& address);
  void OnPeer(PeerId peer, const Status& status);
  void Apply(Node* node, const Status& status);
  void Log(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  const PrefillPoolOptions options_;
  NetNode* net_ = nullptr;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Node> nodes_;
  std::map<PeerId, Status> early_;  // what was heard of connections before the pool knew them
  std::int64_t file_time_ = 0;
  Random random_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lynx
