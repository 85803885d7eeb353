// lynx serve: a prefill node and a decode node in one process.
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "command.h"
#include "front_node.h"
#include "serve/prefill_node.h"

namespace lynx {
namespace {

struct ServeFlags {
  EngineFlags engine;
  int kept = 4;
  std::string profile;
  FrontFlags front;
};

// Serves on a thread of its own.
class PrefillThread {
 public:
  static Result<std::unique_ptr<PrefillThread>> Start(const ServeFlags& flags, std::optional<Profile> profile) {
    PrefillOptions options;
    options.listen = "127.0.0.1:0";
    flags.front.node.Set(&options);
    options.kept_caches = flags.kept;
    options.profile = std::move(profile);
    auto thread = std::make_unique<PrefillThread>();
    LYNX_ASSIGN_OR_RETURN(thread->engine_, OpenEngine(flags.engine, EngineUse::kPrefill, flags.kept + 1));
    LYNX_ASSIGN_OR_RETURN(thread->node_, PrefillNode::Start(thread->engine_.get(), options));
    thread->thread_ = std::thread([node = thread->node_.get(), &stop = thread->stop_] { node->Run(stop); });
    return thread;
  }
  ~PrefillThread() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  const std::string& address() const { return node_->listen_address(); }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PrefillNode> node_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Status RunServe(const ServeFlags& flags) {
  StopFlag();
  LYNX_ASSIGN_OR_RETURN(FrontOptions options, flags.front.Options());
  LYNX_ASSIGN_OR_RETURN(std::optional<Profile> profile, ReadProfile(flags.profile));
  if (flags.front.node.check_config) return EndCheck("serve", flags.engine, flags.front.node);
  LYNX_ASSIGN_OR_RETURN(const auto prefill, PrefillThread::Start(flags, std::move(profile)));
  LYNX_ASSIGN_OR_RETURN(const auto engine, OpenEngine(flags.engine, EngineUse::kDecode, flags.front.requests));
  return RunFront(engine.get(), {{prefill->address()}, "", nullptr}, flags.front, std::move(options));
}

}  // namespace

void AddServeCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app->add_subcommand("serve", "answer over HTTP with a prefill and a decode node on this machine");
  flags->engine.AddTo(command);
  flags->front.AddTo(command);
  AddKeep(command, &flags->kept);
  AddProfile(command, &flags->profile);
  command->footer(kFrontHelp);
  command->callback([flags, exit_code] { *exit_code = ExitCode("serve", RunServe(*flags)); });
}

}  // namespace lynx
