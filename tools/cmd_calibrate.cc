// lynx calibrate: what the lynx codec's encoder should know about a model.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "command.h"
#include "eval/calibrate.h"

namespace lynx {
namespace {

struct CalibrateFlags {
  EngineFlags engine;
  std::string text;
  std::string out;
  bool quick = false;
};

Status RunCalibrate(const CalibrateFlags& flags) {
  if (flags.out.empty()) return Invalid("--out must name a file");
  LYNX_RETURN_IF_ERROR(CheckWritable(flags.out));
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.text));
  EngineFlags engine_flags = flags.engine;
  engine_flags.context += kCalibrateNextTokens;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(engine_flags, EngineUse::kPrefill, 1));
  LYNX_ASSIGN_OR_RETURN(std::vector<Token> tokens, engine->Tokenize(text, false));
  tokens.resize(std::min(tokens.size(), std::size_t(engine_flags.context)));
  CalibrateOptions options;
  options.measure = !flags.quick;
  options.progress = [](std::string_view what, int done, int total) -> Status {
    if (StopFlag()) return IoError("stopped");
    std::fprintf(stderr, "%s %d of %d\n", std::string(what).c_str(), done + 1, total);
    return Ok();
  };
  LYNX_ASSIGN_OR_RETURN(const Profile profile, Calibrate(engine.get(), tokens, options));
  const std::string bytes(reinterpret_cast<const char*>(profile.bytes.data()), profile.bytes.size());
  LYNX_RETURN_IF_ERROR(WriteFile(flags.out, bytes));
  std::printf("%s: %zu bytes from %zu tokens\n", OneLine(flags.out).c_str(), bytes.size(), tokens.size());
  return Ok();
}

}  // namespace

void AddCalibrateCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command = app->add_subcommand("calibrate", "learn a model's profile for the lynx codec from a text");
  flags->engine.context = 2048;
  flags->engine.AddTo(command, "tokens of the text to read at most");
  flags->engine.AddWeightsTo(command);
  command->add_option("--text", flags->text, "any text like what the model will read; 2,000 tokens are enough")
      ->required()
      ->type_name("FILE");
  command->add_flag("--quick", flags->quick, "trust what attention says; don't measure what the output does");
  command->add_option("--out", flags->out, "the profile")->required()->type_name("FILE");
  command->footer(
      "Give the profile to the prefill node: lynx prefill --profile FILE. The decode node does not need it.");
  command->callback([flags, exit_code] {
    const Status status = RunCalibrate(*flags);
    *exit_code = status.ok() ? kExitOk : StopFlag() ? kExitInterrupted : Fail("calibrate", status);
  });
}

}  // namespace lynx
