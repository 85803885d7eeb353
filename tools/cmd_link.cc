// lynx link: a slow link for experiments.
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/status_macros.h"
#include "command.h"
#include "net/link_emulator.h"

namespace lynx {
namespace {

struct LinkFlags {
  std::string listen = "127.0.0.1:0";
  std::string to;
  std::string bandwidth = "100mbit";
  std::string delay = "1ms";
};

Status RunLink(const LinkFlags& flags) {
  const std::atomic<bool>& stop = StopFlag();
  OutliveLogReader();
  LinkOptions options;
  options.listen = flags.listen;
  options.to = flags.to;
  LYNX_ASSIGN_OR_RETURN(options.bits_per_second, ParseBitRate(flags.bandwidth));
  LYNX_ASSIGN_OR_RETURN(options.delay, ParseDuration(flags.delay));
  LYNX_ASSIGN_OR_RETURN(const auto link, LinkEmulator::Start(options));
  std::printf("listening on %s\n", link->listen_address().c_str());
  std::fflush(stdout);
  while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return Ok();
}

}  // namespace

void AddLinkCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<LinkFlags>();
  CLI::App* command =
      app->add_subcommand("link", "a TCP proxy with a given rate and delay, to try slow links on one machine");
  command->add_option("--listen", flags->listen, "address to connect to instead of the real one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  command->add_option("--to", flags->to, "where connections are passed on")->required()->type_name("HOST:PORT");
  command->add_option("--bandwidth", flags->bandwidth, "of each direction: 250kbit, 100mbit, 2.5gbit, unlimited")
      ->capture_default_str()
      ->type_name("RATE");
  command->add_option("--delay", flags->delay, "of each direction: 250us, 1ms, 0.1s")
      ->capture_default_str()
      ->type_name("TIME");
  command->footer(
      "Three terminals:\n"
      "  lynx prefill --model M.gguf --listen 127.0.0.1:7000\n"
      "  lynx link --listen 127.0.0.1:7001 --to 127.0.0.1:7000 --bandwidth 20mbit --delay 10ms\n"
      "  lynx generate --model M.gguf --prefill 127.0.0.1:7001 --prompt \"Hello\"\n"
      "Prints \"listening on HOST:PORT\" once connections are taken. Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 "
      "failed, 2 wrong use.");
  command->callback([flags, exit_code] { *exit_code = ExitCode("link", RunLink(*flags)); });
}

}  // namespace lynx
