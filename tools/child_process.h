// Nodes as processes of their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "lynx/result.h"

namespace lynx {

class ChildProcess {
 public:
  // Runs this program again with `arguments` and waits until it says "listening on ADDRESS". kIo with the child's last
  // words when it ends before that.
  static Result<std::unique_ptr<ChildProcess>> Start(const std::vector<std::string>& arguments);
  // SIGTERM, and SIGKILL after 2 s.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& address() const { return address_; }
  int pid() const { return pid_; }

 private:
  ChildProcess(int pid, int output) : pid_(pid), output_(output) {}
  Status WaitForAddress();

  int pid_;
  int output_;  // its standard output and error
  std::string address_;
};

// A prefill node with the engine of these flags, and a link to it, on this machine.
struct LinkedPrefill {
  std::unique_ptr<ChildProcess> prefill, link;
};
Result<LinkedPrefill> StartLinkedPrefill(const EngineFlags& engine, int kept_caches, const std::string& profile,
                                         const std::string& bandwidth, const std::string& delay);

}  // namespace lynx
