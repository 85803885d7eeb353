// lynx: the command line.
#include <CLI/CLI.hpp>
#include <string>

#include "command.h"
#include "lynx/version.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Lynx sends a prompt's KV cache from a prefill node to a decode node as an anchor stream, enough to draft on, "
      "and a\n"
      "residual stream that completes it. What is committed is exactly what decoding on the complete cache gives.\n"};
  app.name("lynx");
  app.set_version_flag("--version", std::string("lynx ") + lynx::Version() + " (" + lynx::BuildCommit() + ")");
  app.require_subcommand(1);
  app.footer(
      "First steps:\n"
      "  lynx demo --model M.gguf                                   both nodes on this machine, a slow link between "
      "them\n"
      "  lynx prefill --model M.gguf --listen 0.0.0.0:7000          on the machine that reads prompts\n"
      "  lynx generate --model M.gguf --prefill HOST:7000 --prompt-file F   on the machine that answers\n"
      "`lynx COMMAND --help` explains each command.");
  int exit_code = lynx::kExitOk;
  lynx::AddDemoCommand(&app, &exit_code);
  lynx::AddPrefillCommand(&app, &exit_code);
  lynx::AddGenerateCommand(&app, &exit_code);
  lynx::AddLinkCommand(&app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? lynx::kExitOk : lynx::kExitUsage;
  }
  return exit_code;
}
