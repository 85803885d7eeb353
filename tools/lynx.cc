// lynx: the command line.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "codec/codec_spec.h"
#include "command.h"
#include "lynx/version.h"

namespace {

// What is wrong with the command line. A word that nobody knows explains more than what is missing besides.
std::string Complaint(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ConfigError*>(&error) != nullptr) {
    const std::string what = error.what();
    return "the file has an option that does not exist: " + what.substr(what.rfind(' ') + 1);
  }
  const bool has_command = !app.get_subcommands().empty();
  if (const auto unknown = app.remaining(true); !unknown.empty()) {
    const std::string& word = unknown.front();
    if (word.starts_with("-")) return "there is no option " + word;
    return has_command ? "\"" + word + "\" belongs to no option" : "there is no command \"" + word + "\"";
  }
  if (has_command) return error.what();
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  return "give a command: " + lynx::ListOf(commands);
}

int WrongUse(const CLI::App& app, const CLI::ParseError& error) {
  std::string name = "lynx";
  if (!app.get_subcommands().empty()) name += " " + app.get_subcommands().front()->get_name();
  std::cerr << name << ": " << Complaint(app, error) << "; `" << name << " --help` explains\n";
  return lynx::kExitUsage;
}

// A socket must not get the number of a standard stream that the caller closed: what is printed would be sent to a
// peer. Nothing can be written to what stands in, so that printing still fails.
void FillStandardStreams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
  if (fd > STDERR_FILENO) close(fd);
}

// Every option can also stand in a file, in the section of its command; those of nodes in the environment, too.
void AddConfiguration(CLI::App* app) {
  app->set_config("--config", "", "options in a TOML file, under the command's name: [prefill] and listen = \"…\"")
      ->type_name("FILE");
  app->allow_config_extras(CLI::config_extras_mode::error);
  for (CLI::App* command : app->get_subcommands(nullptr)) {
    if (command->get_option_no_throw("--check-config") == nullptr) continue;
    for (CLI::Option* option : command->get_options()) {
      if (option->get_lnames().empty() || option->get_lnames().front() == "help") continue;
      std::string name = "LYNX_" + command->get_name() + "_" + option->get_lnames().front();
      for (char& c : name) c = c == '-' ? '_' : char(std::toupper(static_cast<unsigned char>(c)));
      option->envname(name);
    }
  }
}

int Run(int argc, char** argv) {
  CLI::App app{
      "Lynx sends a prompt's KV cache from a prefill node to a decode node as an anchor stream, enough to draft on, "
      "and a\n"
      "residual stream that completes it. What is committed is exactly what decoding on the complete cache gives.\n"};
  app.name("lynx");
  app.set_version_flag("--version", std::string("lynx ") + lynx::Version() + " (" + lynx::BuildCommit() + ")");
  app.require_subcommand(1);
  app.footer(
      "First steps:\n"
      "  lynx demo --model M.gguf                      both nodes on this machine, a slow link between them\n"
      "  lynx serve --model M.gguf                     answer over HTTP, as OpenAI's API\n"
      "Two terminals:\n"
      "  lynx prefill --model M.gguf --listen 127.0.0.1:7000                      reads prompts\n"
      "  lynx generate --model M.gguf --prefill 127.0.0.1:7000 --prompt \"Hello\"   answers one\n"
      "  lynx decode --model M.gguf --prefill 127.0.0.1:7000                      answers many, over HTTP\n"
      "Two machines: the same with their addresses and certificates; `lynx certs --help` shows how.\n"
      "Options can stand in a file (lynx --config node.toml prefill) or in the environment (LYNX_PREFILL_LISTEN=…).\n"
      "`lynx COMMAND --help` explains each command. Without a model file, try --model toy.");
  int exit_code = lynx::kExitOk;
  lynx::AddDemoCommand(&app, &exit_code);
  lynx::AddServeCommand(&app, &exit_code);
  lynx::AddPrefillCommand(&app, &exit_code);
  lynx::AddDecodeCommand(&app, &exit_code);
  lynx::AddGenerateCommand(&app, &exit_code);
  lynx::AddLinkCommand(&app, &exit_code);
  lynx::AddEvalCommand(&app, &exit_code);
  lynx::AddLoadCommand(&app, &exit_code);
  lynx::AddTopCommand(&app, &exit_code);
  lynx::AddCalibrateCommand(&app, &exit_code);
  lynx::AddCertsCommand(&app, &exit_code);
  AddConfiguration(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : WrongUse(app, error);
  } catch (const std::exception& error) {
    std::cerr << "lynx: " << error.what() << '\n';
    return lynx::kExitFailed;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  FillStandardStreams();
  const int exit_code = Run(argc, argv);
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::cerr << "lynx: can't write to standard output\n";
  return exit_code == lynx::kExitOk ? lynx::kExitFailed : exit_code;
}
