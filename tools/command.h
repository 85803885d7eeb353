// What the commands of `lynx` share: exit codes, the stop flag, opening an engine, reading a prompt.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "lynx/codec.h"
#include "lynx/engine.h"
#include "lynx/result.h"
#include "lynx/sampling.h"

namespace lynx {

// Exit codes: 0 done, 1 failed, 2 wrong use (CLI11's errors too), 3 the exactness check failed, 130 stopped by Ctrl-C.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInexact = 3;
inline constexpr int kExitInterrupted = 130;

// Becomes true on the first SIGINT or SIGTERM; the second ends the process at once.
const std::atomic<bool>& StopFlag();

// For nodes: whoever reads the log may go away without the node's ending with it.
void OutliveLogReader();
// A line of a node's log, on standard error. Any thread. A reader that stopped reading costs lines, which are counted,
// and never makes the node wait.
void Say(std::string_view line);

// Prints "lynx COMMAND: message" on standard error and returns the exit code that fits.
int Fail(const std::string& command, const Status& status);
// Likewise, if the command has failed.
inline int ExitCode(const std::string& command, const Status& status) {
  return status.ok() ? kExitOk : Fail(command, status);
}

// --model and what belongs to it.
struct EngineFlags {
  std::string model;   // a GGUF file, or "toy" / "toy:SEED"
  int context = 4096;  // tokens per sequence
  int threads = 1;
  bool verbose = false;
  std::string weights = "as-is";  // "f16": a GGUF file's weights are turned into F16 first

  void AddTo(CLI::App* app, const char* context_help = "tokens of one sequence, prompt and answer together");
  // --weights, for commands that measure a model: f16 unless told otherwise.
  void AddWeightsTo(CLI::App* app);
  bool IsToy() const { return model == "toy" || model.starts_with("toy:"); }
};

enum class EngineUse { kPrefill, kDecode };
// Opens the engine with room for `sequences` of them; shows progress on a terminal. F16 weights are made once and kept
// in the cache folder.
Result<std::unique_ptr<Engine>> OpenEngine(const EngineFlags& flags, EngineUse use, int sequences);

// How tokens are chosen and when the answer ends.
struct AnswerFlags {
  int max_tokens = 128;
  int max_drafts = 64;
  std::vector<std::string> stop;
  SamplingOptions sampling;
  std::string method = "coupled";

  void AddTo(CLI::App* app);
  SamplingOptions Sampling() const;
};

// A number from low to high.
CLI::Validator Between(double low, double high);
// An option that is one; its help shows the default.
template <typename T>
CLI::Option* AddNumber(CLI::App* app, const char* name, T& value, const char* meaning, double low, double high,
                       const char* unit = "N") {
  return app->add_option(name, value, meaning)->capture_default_str()->type_name(unit)->check(Between(low, high));
}

// For logs and terminals, whatever a peer or a model file put into it: one line, no control characters.
std::string OneLine(std::string_view text);

// The bytes of a file; "-" is standard input. kIo with the reason; kLimit if there are more than 64 MiB.
Result<std::string> ReadFile(const std::string& path);
// kIo if the file can't be written later; ok without a path. Leaves no file that was not there. Before work whose
// result would be lost.
Status CheckWritable(const std::string& path);
Status WriteFile(const std::string& path, const std::string& text);
// Indented; nothing without a path.
Status WriteJson(const std::string& path, const nlohmann::json& json);

// --profile.
void AddProfile(CLI::App* app, std::string* path);
// What `lynx calibrate` wrote, whole; nothing for an empty path. Whether it fits a model is for MakeCodec to say.
Result<std::optional<Profile>> ReadProfile(const std::string& path);

// A user message as prompt tokens. With `raw`, the text as it is; otherwise document and question in the model's chat
// template. `prompt_tokens` > 0 cuts the end of the document so that the prompt has exactly that many tokens.
Result<std::vector<Token>> BuildPrompt(const Engine& engine, std::string_view document, std::string_view question,
                                       bool raw, int prompt_tokens);

// The codecs of arguments like "a:x=1,y=2,b", which must stay two codecs although a comma separates them: a piece with
// a '=' and without a ':' before it belongs to the codec before it. kInvalid when there is none.
Result<std::vector<std::string>> SplitCodecs(const std::vector<std::string>& arguments);

// What is wrong with a codec and its parameters, whatever the model; nothing with "auto". kUnsupported for a baseline,
// too: those have no place on a wire.
Status CheckServed(std::string_view codec);

// Subcommands: each adds itself to the app and sets *exit_code when it has run.
void AddPrefillCommand(CLI::App* app, int* exit_code);
void AddDecodeCommand(CLI::App* app, int* exit_code);
void AddServeCommand(CLI::App* app, int* exit_code);
void AddGenerateCommand(CLI::App* app, int* exit_code);
void AddDemoCommand(CLI::App* app, int* exit_code);
void AddLinkCommand(CLI::App* app, int* exit_code);
void AddEvalCommand(CLI::App* app, int* exit_code);
void AddLoadCommand(CLI::App* app, int* exit_code);
void AddTopCommand(CLI::App* app, int* exit_code);
void AddCalibrateCommand(CLI::App* app, int* exit_code);
void AddCertsCommand(CLI::App* app, int* exit_code);

}  // namespace lynx
