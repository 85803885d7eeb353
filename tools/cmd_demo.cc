// lynx demo: both nodes and a slow link on this machine; one prompt, one cache, every codec.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "child_process.h"
#include "command.h"
#include "demo_prompt.h"
#include "lynx/codec.h"
#include "net/link_emulator.h"
#include "net/plain_copy.h"
#include "report.h"
#include "serve/decode_node.h"
#include "terminal_view.h"

namespace lynx {
namespace {

struct DemoFlags {
  EngineFlags engine;
  AnswerFlags answer;
  std::string prompt_file;
  std::string question;
  std::string bandwidth = "100mbit";
  std::string delay = "1ms";
  std::string json;
  std::string profile;
  std::vector<std::string> codecs = {"lynx", "nested", "paper", "int4", "int8", "raw"};
  int prompt_tokens = 2048;
  bool raw = false;
  bool no_check = false;
};

// Everything that runs while the demo does.
struct Stage {
  LinkedPrefill nodes;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<DecodeNode> node;
  RunSettings settings;
  std::vector<Token> prompt;
  std::vector<std::string> codecs;
};

constexpr int kTimelineWidth = 64;
// The plain copy that goodput is compared with: a second at the link's rate, at least 100 kB.
constexpr double kCopySeconds = 1;

// A node that has served a prompt of this length before has its buffers in memory; the first codec should not pay for
// that.
Status WarmUp(Engine* engine, int tokens) {
  LYNX_ASSIGN_OR_RETURN(const SequenceId sequence, engine->Open());
  const Status status = engine->WriteBlock(sequence, CacheBlock(engine->info().shape, 0, tokens));
  engine->Close(sequence);
  return status;
}

Status Prepare(const DemoFlags& flags, Stage* stage) {
  LYNX_RETURN_IF_ERROR(CheckWritable(flags.json));
  LYNX_ASSIGN_OR_RETURN(stage->codecs, SplitCodecs(flags.codecs));
  for (const std::string& codec : stage->codecs) LYNX_RETURN_IF_ERROR(CheckServed(codec));
  LYNX_ASSIGN_OR_RETURN(stage->settings.bandwidth_bps, ParseBitRate(flags.bandwidth));
  LYNX_ASSIGN_OR_RETURN(const TimeNs delay, ParseDuration(flags.delay));
  stage->settings.delay_s = double(delay) / double(kSecondNs);
  std::string document(DemoDocument());
  std::string question(DemoQuestion());
  if (!flags.prompt_file.empty()) {
    LYNX_ASSIGN_OR_RETURN(document, ReadFile(flags.prompt_file));
    question.clear();
  }
  if (!flags.question.empty()) question = flags.question;

  std::printf("1. Starting the decode node (this process) and the prefill node\n");
  LYNX_ASSIGN_OR_RETURN(stage->engine, OpenEngine(flags.engine, EngineUse::kDecode, 2));
  LYNX_ASSIGN_OR_RETURN(stage->prompt, BuildPrompt(*stage->engine, document, question, flags.raw, flags.prompt_tokens));
  LYNX_RETURN_IF_ERROR(WarmUp(stage->engine.get(), int(stage->prompt.size())));
  for (const std::string& codec : stage->codecs) {
    LYNX_RETURN_IF_ERROR(MakeCodec(codec, stage->engine->info().shape).status());
  }
  stage->settings.model = stage->engine->info().model;
  stage->settings.prompt_tokens = int(stage->prompt.size());
  LYNX_ASSIGN_OR_RETURN(stage->nodes, StartLinkedPrefill(flags.engine, 1, flags.profile, flags.bandwidth, flags.delay));
  DecodeOptions options;
  options.prefill.addresses = {stage->nodes.link->address()};
  options.adapt_drafts = false;  // what one codec showed must not change how the next one runs
  LYNX_ASSIGN_OR_RETURN(stage->node, DecodeNode::Start(stage->engine.get(), options));
  LYNX_RETURN_IF_ERROR(stage->node->AwaitPrefill());
  const double cache_mb = double(stage->engine->info().shape.BytesPerToken()) * double(stage->prompt.size()) / 1e6;
  std::printf("   model %s, prompt of %zu tokens, KV cache of %.1f MB in BF16\n", stage->settings.model.c_str(),
              stage->prompt.size(), cache_mb);
  std::printf("   prefill node: process %d on %s; link: %s, %s one way, on %s\n", stage->nodes.prefill->pid(),
              stage->nodes.prefill->address().c_str(), flags.bandwidth.c_str(), flags.delay.c_str(),
              stage->nodes.link->address().c_str());
  return Ok();
}

// What a plain TCP connection carries over such a link, on the same machine in the same run.
Status MeasureCopy(const DemoFlags& flags, Stage* stage) {
  if (stage->settings.bandwidth_bps == 0) return Ok();
  LinkOptions link;
  link.bits_per_second = stage->settings.bandwidth_bps;
  LYNX_ASSIGN_OR_RETURN(link.delay, ParseDuration(flags.delay));
  const auto bytes = std::max<std::uint64_t>(100'000, std::uint64_t(link.bits_per_second / 8 * kCopySeconds));
  LYNX_ASSIGN_OR_RETURN(stage->settings.copy_bps, PlainCopyRate(link, bytes));
  std::printf("   a plain TCP copy over such a link carries %.1f Mbit/s\n", stage->settings.copy_bps / 1e6);
  return Ok();
}

Result<RunRow> RunOne(const DemoFlags& flags, Stage* stage, const std::string& codec, bool overlap, bool reuse) {
  GenerateRequest request;
  request.prompt = stage->prompt;
  request.codec = codec;
  request.sampling = flags.answer.Sampling();
  request.max_new_tokens = flags.answer.max_tokens;
  request.max_drafts = flags.answer.max_drafts;
  request.stop = flags.answer.stop;
  request.overlap = overlap;
  request.reuse = reuse;
  request.check = !flags.no_check;
  TerminalView view(stage->engine.get(), isatty(STDOUT_FILENO) != 0);
  Result<GenerateResult> result = stage->node->Generate(request, &view, &StopFlag());
  view.End();
  if (!result.ok()) return result.status();
  if (StopFlag()) return IoError("stopped");
  std::printf("%s", Timeline(*result, kTimelineWidth).c_str());
  return RunRow{overlap, std::move(*result)};
}

Status RunAll(const DemoFlags& flags, Stage* stage, std::vector<RunRow>* rows) {
  int step = 2;
  for (const std::string& codec : stage->codecs) {
    std::printf("\n%d. %s, sent when the prompt is read%s\n", step++, codec.c_str(),
                rows->empty() ? " (the prompt is read now; the runs after this send the same cache)" : "");
    LYNX_ASSIGN_OR_RETURN(RunRow row, RunOne(flags, stage, codec, false, true));
    rows->push_back(std::move(row));
  }
  std::printf("\n%d. %s once more from a cold cache, sent while the prompt is being read\n", step,
              stage->codecs.front().c_str());
  LYNX_ASSIGN_OR_RETURN(RunRow row, RunOne(flags, stage, stage->codecs.front(), true, false));
  rows->push_back(std::move(row));
  return Ok();
}

int RunDemo(const DemoFlags& flags) {
  StopFlag();
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Stage stage;
  std::vector<RunRow> rows;
  Status status = Prepare(flags, &stage);
  if (status.ok()) status = MeasureCopy(flags, &stage);
  if (status.ok()) status = RunAll(flags, &stage, &rows);
  if (StopFlag()) return kExitInterrupted;
  if (!status.ok()) return Fail("demo", status);

  std::printf(
      "\nSizes in MB. \"read s\" is when the prompt was read, in seconds since the request; TTFT (the first token that "
      "the\n"
      "decode node chose itself) and TTnT (n tokens committed) are in seconds since then.\n\n%s\n%s",
      Table(rows).c_str(), Comparison(stage.settings, rows).c_str());
  status = WriteJson(flags.json, ReportJson(stage.settings, rows));
  if (!status.ok()) return Fail("demo", status);
  for (const RunRow& row : rows) {
    if (!row.result.checked || row.result.exact) continue;
    std::fprintf(stderr, "lynx demo: %s is not exact: %s\n", row.result.codec.c_str(), row.result.difference.c_str());
    return kExitInexact;
  }
  return kExitOk;
}

}  // namespace

void AddDemoCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<DemoFlags>();
  CLI::App* command =
      app->add_subcommand("demo", "prefill node, slow link and decode node on this machine; every codec on one prompt");
  flags->engine.AddTo(command);
  command->add_option("--bandwidth", flags->bandwidth, "of the link: 20mbit, 100mbit, 1gbit, unlimited")
      ->capture_default_str()
      ->type_name("RATE");
  command->add_option("--delay", flags->delay, "of the link, one way: 250us, 1ms, 20ms")
      ->capture_default_str()
      ->type_name("TIME");
  command->add_option("--prompt-file", flags->prompt_file, "your own text instead of the bundled one")
      ->type_name("FILE");
  command->add_option("--question", flags->question, "what to ask about the text")->type_name("TEXT");
  AddNumber(command, "--prompt-tokens", flags->prompt_tokens,
            "cut the text so that the prompt has this many tokens; 0: all of it", 0, 1 << 22);
  command->add_flag("--raw", flags->raw, "the text as it is, without the model's chat template");
  command->add_option("--codecs", flags->codecs, "codecs to run, the first once more with overlap")
      ->capture_default_str()
      ->type_name("CODEC");
  AddProfile(command, &flags->profile);
  flags->answer.AddTo(command);
  command->add_flag("--no-check", flags->no_check, "skip the comparison with decoding without drafts");
  command->add_option("--json", flags->json, "write what was measured")->type_name("FILE");
  command->footer(
      "The answer streams live: drafts dim, committed text plain, drafts that were wrong struck through and replaced.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong use, 3 a run was not exact, 130 Ctrl-C.");
  command->callback([flags, exit_code] { *exit_code = RunDemo(*flags); });
}

}  // namespace lynx
