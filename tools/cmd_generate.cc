// lynx generate: one answer from a prefill node's cache.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "codec/codec_spec.h"
#include "command.h"
#include "node_flags.h"
#include "report.h"
#include "serve/decode_node.h"
#include "terminal_view.h"

namespace lynx {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  AnswerFlags answer;
  std::string prefill;
  std::string prompt_file;
  std::string prompt;
  std::string codec = "lynx";
  std::string overlap = "on";
  std::string json;
  NodeFlags node;
  int prompt_tokens = 0;
  int retries = 2;
  std::uint32_t deadline_ms = 0;
  bool raw = false;
  bool check = false;
  bool quiet = false;
};

// Before the model is loaded, so that a wrong path or codec costs no wait.
Result<std::string> PromptText(const GenerateFlags& flags) {
  LYNX_RETURN_IF_ERROR(CheckWritable(flags.json));
  LYNX_RETURN_IF_ERROR(CheckServed(flags.codec));
  LYNX_RETURN_IF_ERROR(CheckProtected(flags.prefill, flags.node.tls));
  std::string text = flags.prompt;
  if (!flags.prompt_file.empty()) {
    LYNX_ASSIGN_OR_RETURN(text, ReadFile(flags.prompt_file));
  }
  if (text.empty()) return Invalid("the prompt is empty; give --prompt TEXT or --prompt-file FILE");
  return text;
}

Result<GenerateRequest> MakeRequest(const GenerateFlags& flags, const Engine& engine, const std::string& text) {
  GenerateRequest request;
  LYNX_ASSIGN_OR_RETURN(request.prompt, BuildPrompt(engine, text, "", flags.raw, flags.prompt_tokens));
  request.codec = flags.codec;
  request.sampling = flags.answer.Sampling();
  request.max_new_tokens = flags.answer.max_tokens;
  request.max_drafts = flags.answer.max_drafts;
  request.stop = flags.answer.stop;
  request.deadline_ms = flags.deadline_ms;
  request.overlap = flags.overlap == "on";
  request.check = flags.check;
  return request;
}

Result<GenerateResult> Generate(const GenerateFlags& flags, Engine* engine, const GenerateRequest& request) {
  DecodeOptions options;
  options.prefill.addresses = {flags.prefill};
  flags.node.Set(&options);
  options.retries = flags.retries;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<DecodeNode> node, DecodeNode::Start(engine, options));
  LYNX_RETURN_IF_ERROR(node->AwaitPrefill());
  TerminalView view(engine, isatty(STDOUT_FILENO) != 0);
  Result<GenerateResult> result = node->Generate(request, flags.quiet ? nullptr : &view, &StopFlag());
  if (!flags.quiet) view.End();
  return result;
}

int RunGenerate(const GenerateFlags& flags) {
  StopFlag();
  const auto text = PromptText(flags);
  if (!text.ok()) return Fail("generate", text.status());
  if (flags.node.check_config) return ExitCode("generate", EndCheck("generate", flags.engine, flags.node));
  const auto engine = OpenEngine(flags.engine, EngineUse::kDecode, flags.check ? 2 : 1);
  if (!engine.ok()) return Fail("generate", engine.status());
  const auto request = MakeRequest(flags, **engine, *text);
  if (!request.ok()) return Fail("generate", request.status());
  const auto result = Generate(flags, engine->get(), *request);
  if (!result.ok()) return Fail("generate", result.status());

  const RunSettings settings{(*engine)->info().model, int(request->prompt.size()), 0, 0, 0};
  const std::vector<RunRow> rows{{request->overlap, *result}};
  const Status written = WriteJson(flags.json, ReportJson(settings, rows));
  if (!written.ok()) return Fail("generate", written);
  if (!flags.quiet && !result->tokens.empty()) {
    std::fprintf(stderr, "%s%s", Timeline(*result, 60).c_str(), Table(rows).c_str());
  }
  if (result->checked && !result->exact) {
    std::fprintf(stderr, "lynx generate: not exact: %s\n", result->difference.c_str());
    return kExitInexact;
  }
  return StopFlag() ? kExitInterrupted : kExitOk;
}

}  // namespace

void AddGenerateCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app->add_subcommand("generate", "answer one prompt that a prefill node reads");
  flags->engine.AddTo(command);
  command->add_option("--prefill", flags->prefill, "the prefill node")->required()->type_name("HOST:PORT");
  auto* text = command->add_option("--prompt", flags->prompt, "the user's message")->type_name("TEXT");
  command->add_option("--prompt-file", flags->prompt_file, "the user's message in a file; \"-\" reads standard input")
      ->type_name("FILE")
      ->excludes(text);
  command->add_flag("--raw", flags->raw, "the prompt as it is, without the model's chat template");
  command
      ->add_option("--prompt-tokens", flags->prompt_tokens, "cut the message so that the prompt has this many tokens")
      ->type_name("N")
      ->check(Between(1, 1 << 22));
  command->add_option("--codec", flags->codec, ListOf(CodecNames()) + "; parameters as name:key=value")
      ->capture_default_str()
      ->type_name("CODEC");
  command->add_option("--overlap", flags->overlap, "on: pages travel while the prompt is still read; off: afterwards")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  command->add_option("--deadline", flags->deadline_ms, "give up after this many milliseconds; 0: never")
      ->capture_default_str()
      ->type_name("MS");
  AddNumber(command, "--retries", flags->retries,
            "how often to begin again when the transfer fails before the second token is committed", 0, 100);
  flags->answer.AddTo(command);
  command->add_flag("--check", flags->check,
                    "afterwards, decode again without drafts and compare (needs a second sequence)");
  command->add_option("--json", flags->json, "write what was measured")->type_name("FILE");
  command->add_flag("--quiet", flags->quiet, "write nothing but errors");
  flags->node.AddTo(command);
  command->footer(
      "A prefill node with the same model must run first, here or on another machine (see `lynx certs --help`):\n"
      "  lynx prefill --model M.gguf --listen 127.0.0.1:7000\n"
      "The answer goes to standard output: on a terminal drafts appear dim and turn plain when they are committed;\n"
      "otherwise only committed text is written. Exit codes: 0 done, 1 failed, 2 wrong use, 3 not exact (--check), 130 "
      "Ctrl-C.");
  command->callback([flags, exit_code] { *exit_code = RunGenerate(*flags); });
}

}  // namespace lynx
