// lynx prefill: a node that reads prompts for others.
#include <cstdio>
#include <memory>
#include <string>

#include "command.h"
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

int RunPrefill(const PrefillFlags& flags) {
  const std::atomic<bool>& stop = StopFlag();
  OutliveLogReader();
  if (const Status status = CheckProtected(flags.listen, flags.node.tls); !status.ok()) return Fail("prefill", status);
  auto profile = ReadProfile(flags.profile);
  if (!profile.ok()) return Fail("prefill", profile.status());
  if (flags.node.check_config) return EndCheck("prefill", flags.engine, flags.node);
  auto engine = OpenEngine(flags.engine, EngineUse::kPrefill, flags.kept + 1);
  if (!engine.ok()) return Fail("prefill", engine.status());
  PrefillOptions options;
  options.listen = flags.listen;
  options.tcp.congestion_control = flags.node.congestion_control;
  options.codec_threads = flags.node.codec_threads;
  options.tls = flags.node.tls;
  options.kept_caches = flags.kept;
  options.drain = TimeNs(flags.drain_s * double(kSecondNs));
  options.max_held_bytes = std::uint64_t(flags.hold_mb) << 20;
  options.profile = std::move(*profile);
  options.log = Say;
  auto node = PrefillNode::Start(engine->get(), options);
  if (!node.ok()) return Fail("prefill", node.status());
  std::printf("listening on %s\n", (*node)->listen_address().c_str());
  std::fflush(stdout);
  Say("model " + (*engine)->info().model + ", " + std::to_string((*engine)->info().max_tokens) +
      " tokens of context; Ctrl-C stops");
  (*node)->Run(stop);
  return kExitOk;
}

}  // namespace

void AddPrefillCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<PrefillFlags>();
  CLI::App* command = app->add_subcommand("prefill", "read prompts for decode nodes and send them the KV cache");
  flags->engine.AddTo(command);
  command->add_option("--listen", flags->listen, "address for decode nodes; port 0 takes a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  command->add_option("--keep", flags->kept, "caches of recent prompts to keep, so that they need not be read again")
      ->capture_default_str()
      ->type_name("N")
      ->check(Between(0, 64));
  command->add_option("--hold-mb", flags->hold_mb, "memory for pages that decode nodes have not taken yet")
      ->capture_default_str()
      ->type_name("MIB")
      ->check(Between(1, 1 << 20));
  flags->node.AddTo(command);
  command
      ->add_option("--drain", flags->drain_s,
                   "how long requests under way may go on after SIGTERM or Ctrl-C; a second signal ends at once")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Between(0, 86400));
  command->add_option("--profile", flags->profile, "what `lynx calibrate` wrote: better anchors of codec lynx")
      ->type_name("FILE");
  command->footer(
      "Then, to answer:\n"
      "  lynx generate --model M.gguf --prefill 127.0.0.1:7000 --prompt \"Hello\"\n"
      "Prints \"listening on HOST:PORT\" on standard output once it serves, one line per request on standard error.\n"
      "Beyond loopback nodes need certificates, which `lynx certs` makes, or --plaintext on both sides.\n"
      "Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong use.");
  command->callback([flags, exit_code] { *exit_code = RunPrefill(*flags); });
}

}  // namespace lynx
