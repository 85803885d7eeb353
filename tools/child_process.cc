#include "child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/status_macros.h"

namespace lynx {
namespace {

constexpr std::string_view kReadyPrefix = "listening on ";
constexpr std::size_t kMaxWords = 4096;  // of a child that is not ready yet

[[noreturn]] void Exec(const std::vector<std::string>& arguments, int output) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setpgid(0, 0);  // Ctrl-C in the terminal reaches the parent only, which ends its children in order
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  std::vector<char*> argv;
  std::string name = "lynx";
  argv.push_back(name.data());
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::Start(const std::vector<std::string>& arguments) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return IoError(std::string("can't make a pipe: ") + std::strerror(errno));
  const int pid = fork();
  if (pid == 0) Exec(arguments, pipe_ends[1]);
  close(pipe_ends[1]);
  if (pid < 0) {
    close(pipe_ends[0]);
    return IoError(std::string("can't start a process: ") + std::strerror(errno));
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess(pid, pipe_ends[0]));
  LYNX_RETURN_IF_ERROR(child->WaitForAddress());
  return child;
}

Status ChildProcess::WaitForAddress() {
  std::string words;
  char buffer[256];
  for (;;) {
    const ssize_t count = read(output_, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) return IoError("interrupted");
    if (count <= 0) return IoError("a node ended before it was ready: " + words);
    words.append(buffer, std::size_t(count));
    const auto at = words.find(kReadyPrefix);
    const auto end = at == std::string::npos ? at : words.find('\n', at);
    if (end != std::string::npos) {
      address_ = words.substr(at + kReadyPrefix.size(), end - at - kReadyPrefix.size());
      break;
    }
    if (words.size() > kMaxWords) words.erase(0, words.size() - kMaxWords);
  }
  // From now on its log is read and dropped, so that the pipe never fills.
  std::thread([output = dup(output_)] {
    char dropped[1024];
    while (read(output, dropped, sizeof dropped) > 0) {
    }
    close(output);
  }).detach();
  return Ok();
}

ChildProcess::~ChildProcess() {
  kill(pid_, SIGTERM);
  for (int waited = 0; waited < 200; ++waited) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      close(output_);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(output_);
}

Result<LinkedPrefill> StartLinkedPrefill(const EngineFlags& engine, int kept_caches, const std::string& profile,
                                         const std::string& bandwidth, const std::string& delay) {
  std::vector<std::string> prefill = {"prefill",
                                      "--model",
                                      engine.model,
                                      "--context",
                                      std::to_string(engine.context),
                                      "--threads",
                                      std::to_string(engine.threads),
                                      "--listen",
                                      "127.0.0.1:0",
                                      "--keep",
                                      std::to_string(kept_caches)};
  if (!profile.empty()) prefill.insert(prefill.end(), {"--profile", profile});
  LinkedPrefill nodes;
  LYNX_ASSIGN_OR_RETURN(nodes.prefill, ChildProcess::Start(prefill));
  LYNX_ASSIGN_OR_RETURN(nodes.link, ChildProcess::Start({"link", "--to", nodes.prefill->address(), "--bandwidth",
                                                         bandwidth, "--delay", delay}));
  return nodes;
}

}  // namespace lynx
