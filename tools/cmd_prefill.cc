// lynx prefill: a node that reads prompts for others.
#include <cstdio>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "command.h"
#include "node_flags.h"
#include "serve/prefill_node.h"

namespace lynx {
namespace {

struct PrefillFlags {
  EngineFlags engine;
  std::string listen = "127.0.0.1:7000";
  NodeFlags node;
  int kept = 4;
  double drain_s = 10;
  int hold_mb = 1024;
  std::string profile;
};

Status RunPrefill(const PrefillFlags& flags) {
  const std::atomic<bool>& stop = StopFlag();
  OutliveLogReader();
  PrefillOptions options;
  LYNX_RETURN_IF_ERROR(CheckProtected(flags.listen, flags.node.tls));
  LYNX_ASSIGN_OR_RETURN(options.profile, ReadProfile(flags.profile));
  if (flags.node.check_config) return EndCheck("prefill", flags.engine, flags.node);
  LYNX_ASSIGN_OR_RETURN(const auto engine, OpenEngine(flags.engine, EngineUse::kPrefill, flags.kept + 1));
  options.listen = flags.listen;
  flags.node.Set(&options);
  options.kept_caches = flags.kept;
  options.drain = TimeNs(flags.drain_s * double(kSecondNs));
  options.max_held_bytes = std::uint64_t(flags.hold_mb) << 20;
  options.log = Say;
  LYNX_ASSIGN_OR_RETURN(const auto node, PrefillNode::Start(engine.get(), options));
  std::printf("listening on %s\n", node->listen_address().c_str());
  std::fflush(stdout);
  Say("model " + engine->info().model + ", " + std::to_string(engine->info().max_tokens) +
      " tokens of context; Ctrl-C stops");
  node->Run(stop);
  return Ok();
}

}  // namespace

void AddPrefillCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<PrefillFlags>();
  CLI::App* command = app->add_subcommand("prefill", "read prompts for decode nodes and send them the KV cache");
  flags->engine.AddTo(command);
  command->add_option("--listen", flags->listen, "address for decode nodes; port 0 takes a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  AddKeep(command, &flags->kept);
  AddNumber(command, "--hold-mb", flags->hold_mb, "memory for pages that decode nodes have not taken yet", 1, 1 << 20,
            "MIB");
  flags->node.AddTo(command);
  AddNumber(command, "--drain", flags->drain_s,
            "how long requests under way may go on after SIGTERM or Ctrl-C; a second signal ends at once", 0, 86400,
            "SECONDS");
  AddProfile(command, &flags->profile);
  command->footer(
      "Then, to answer:\n"
      "  lynx generate --model M.gguf --prefill 127.0.0.1:7000 --prompt \"Hello\"\n"
      "Prints \"listening on HOST:PORT\" on standard output once it serves, one line per request on standard error.\n"
      "Beyond loopback nodes need certificates, which `lynx certs` makes, or --plaintext on both sides.\n"
      "Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong use.");
  command->callback([flags, exit_code] { *exit_code = ExitCode("prefill", RunPrefill(*flags)); });
}

}  // namespace lynx
