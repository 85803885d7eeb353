// lynx decode: a node that answers over HTTP.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "command.h"
#include "front_node.h"
#include "net/tls.h"
#include "serve/prefill_pool.h"

namespace lynx {
namespace {

struct DecodeFlags {
  EngineFlags engine;
  PrefillPoolOptions prefill;
  FrontFlags front;
};

Status RunDecode(const DecodeFlags& flags) {
  StopFlag();
  if (flags.prefill.addresses.empty() && flags.prefill.file.empty()) {
    return Invalid("give --prefill HOST:PORT or --prefill-file FILE");
  }
  LYNX_ASSIGN_OR_RETURN(FrontOptions options, flags.front.Options());
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AddressesOf(flags.prefill));
  for (const std::string& address : addresses) {
    LYNX_RETURN_IF_ERROR(CheckProtected(address, flags.front.node.tls));
  }
  if (flags.front.node.check_config) return EndCheck("decode", flags.engine, flags.front.node);
  LYNX_ASSIGN_OR_RETURN(const auto engine, OpenEngine(flags.engine, EngineUse::kDecode, flags.front.requests));
  return RunFront(engine.get(), flags.prefill, flags.front, std::move(options));
}

}  // namespace

void AddDecodeCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command = app->add_subcommand("decode", "answer over HTTP, with caches from a prefill node");
  flags->engine.AddTo(command);
  command->add_option("--prefill", flags->prefill.addresses, "a prefill node; may be given several times")
      ->type_name("HOST:PORT")
      ->allow_extra_args(false);
  command
      ->add_option("--prefill-file", flags->prefill.file,
                   "more prefill nodes, one per line; read again when it changes")
      ->type_name("FILE");
  flags->front.AddTo(command);
  command->footer(
      "A prefill node with the same model must run, here or on another machine; it may start later:\n"
      "  lynx prefill --model M.gguf --listen 127.0.0.1:7000        (other machines: see `lynx certs --help`)\n" +
      std::string(kFrontHelp));
  command->callback([flags, exit_code] { *exit_code = ExitCode("decode", RunDecode(*flags)); });
}

}  // namespace lynx
