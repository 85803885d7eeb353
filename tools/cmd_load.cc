// lynx load: many requests at once through both nodes and a link, one configuration after the other.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "child_process.h"
#include "command.h"
#include "net/link_emulator.h"
#include "serve/decode_node.h"

namespace lynx {
namespace {

struct LoadFlags {
  EngineFlags engine;
  AnswerFlags answer;
  std::string text;
  std::string bandwidth = "200mbit";
  std::string delay = "1ms";
  std::string profile;
  std::string json;
  std::vector<std::string> codecs = {"lynx", "int8"};
  int requests = 8;
  int running = 8;
  int shortest = 1024, longest = 4096;
  int rounds = 2;
};

// How requests are served: a codec, with drafts as they pay or without any, anchors as they pay or always first.
struct Configuration {
  std::string codec;
  bool drafts = true;
  AnchorOrder anchors = AnchorOrder::kAuto;
  std::string Name() const {
    return codec + (drafts ? "" : ", no drafts") + (anchors == AnchorOrder::kFirst ? ", anchors first" : "");
  }
};

// One request of one round, in seconds from when it was sent.
struct Sample {
  double first_s = 0;    // committed tokens beyond token 0: the first …
  double token32_s = 0;  // … and the 32nd, or the last if there are fewer
  double end_s = 0;
  GenerateResult result;
};

struct Row {
  Configuration configuration;
  std::vector<Sample> samples;
  double wall_s = 0;
  EngineLoopStats stats;  // of its rounds
};

struct Stage {
  LinkedPrefill nodes;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<DecodeNode> node;
  std::vector<std::vector<Token>> prompts;
};

// Takes the times at which tokens were committed.
class Watch : public GenerateObserver {
 public:
  void OnTokens(const std::vector<Token>&, int committed) override {
    const double now = double(MonotonicNow() - begin_) / double(kSecondNs);
    if (committed >= 2 && first_s == 0) first_s = now;
    if (committed >= 32 && token32_s == 0) token32_s = now;
  }
  void OnWaiting(const TransferProgress&) override {}
  double Seconds() const { return double(MonotonicNow() - begin_) / double(kSecondNs); }
  double first_s = 0, token32_s = 0;

 private:
  const TimeNs begin_ = MonotonicNow();
};

// Prompts of different lengths from different places of the text.
Status CutPrompts(const LoadFlags& flags, Stage* stage) {
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.text));
  LYNX_ASSIGN_OR_RETURN(const std::vector<Token> tokens, stage->engine->Tokenize(text, false));
  if (int(tokens.size()) < flags.longest) {
    return Invalid(flags.text + " has " + std::to_string(tokens.size()) +
                   " tokens; give a longer text or a smaller --longest");
  }
  const std::size_t room = tokens.size() - std::size_t(flags.longest);
  const int last = std::max(1, flags.requests - 1);
  for (int i = 0; i < flags.requests; ++i) {
    const auto first = tokens.begin() + std::ptrdiff_t(room * std::size_t(i) / std::size_t(last));
    const int length = flags.shortest + (flags.longest - flags.shortest) * i / last;
    stage->prompts.emplace_back(first, first + length);
  }
  return Ok();
}

Status Prepare(const LoadFlags& flags, Stage* stage) {
  LYNX_RETURN_IF_ERROR(CheckWritable(flags.json));
  if (flags.shortest > flags.longest) return Invalid("--shortest is greater than --longest");
  if (flags.longest + flags.answer.max_tokens > flags.engine.context) {
    return Invalid("the longest prompt and its answer don't fit --context " + std::to_string(flags.engine.context));
  }
  LYNX_ASSIGN_OR_RETURN(stage->engine, OpenEngine(flags.engine, EngineUse::kDecode, flags.running));
  LYNX_RETURN_IF_ERROR(CutPrompts(flags, stage));
  LYNX_ASSIGN_OR_RETURN(stage->nodes,
                        StartLinkedPrefill(flags.engine, flags.requests, flags.profile, flags.bandwidth, flags.delay));
  DecodeOptions options;
  options.max_running = flags.running;
  options.max_waiting = flags.requests;
  options.prefill.addresses = {stage->nodes.link->address()};
  LYNX_ASSIGN_OR_RETURN(stage->node, DecodeNode::Start(stage->engine.get(), options));
  return stage->node->AwaitPrefill();
}

Result<Sample> RunOne(const LoadFlags& flags, Stage* stage, const Configuration& configuration, int index) {
  GenerateRequest request;
  request.prompt = stage->prompts[std::size_t(index)];
  request.codec = configuration.codec;
  request.sampling = flags.answer.Sampling();
  request.max_new_tokens = flags.answer.max_tokens;
  request.max_drafts = configuration.drafts ? flags.answer.max_drafts : 0;
  request.anchor_order = configuration.anchors;
  Watch watch;
  LYNX_ASSIGN_OR_RETURN(GenerateResult result, stage->node->Generate(request, &watch, &StopFlag()));
  const double end_s = watch.Seconds();
  return Sample{watch.first_s == 0 ? end_s : watch.first_s, watch.token32_s == 0 ? end_s : watch.token32_s, end_s,
                std::move(result)};
}

// All requests at once, to the last one's end.
Status RunRound(const LoadFlags& flags, Stage* stage, Row* row) {
  const EngineLoopStats before = stage->node->stats();
  std::vector<Result<Sample>> samples(std::size_t(flags.requests), IoError("not run"));
  std::vector<std::thread> threads;
  const TimeNs begin = MonotonicNow();
  for (int i = 0; i < flags.requests; ++i) {
    threads.emplace_back([&, i] { samples[std::size_t(i)] = RunOne(flags, stage, row->configuration, i); });
  }
  for (std::thread& thread : threads) thread.join();
  row->wall_s += double(MonotonicNow() - begin) / double(kSecondNs);
  for (Result<Sample>& sample : samples) {
    LYNX_RETURN_IF_ERROR(sample.status());
    row->samples.push_back(std::move(sample).value());
  }
  const EngineLoopStats after = stage->node->stats();
  row->stats.steps += after.steps - before.steps;
  row->stats.step_inputs += after.step_inputs - before.step_inputs;
  return StopFlag() ? IoError("stopped") : Ok();
}

double Mean(const Row& row, double Sample::*time) {
  double sum = 0;
  for (const Sample& sample : row.samples) sum += sample.*time;
  return sum / double(row.samples.size());
}

nlohmann::json Summary(const Row& row) {
  std::uint64_t bytes = 0;
  int tokens = 0, drafted = 0, accepted = 0, anchors_first = 0;
  for (const Sample& sample : row.samples) {
    for (const std::uint64_t stream : sample.result.stream_wire_bytes) bytes += stream;
    tokens += int(sample.result.tokens.size());
    drafted += sample.result.drafted;
    accepted += sample.result.accepted;
    anchors_first += sample.result.anchor_first ? 1 : 0;
  }
  return {{"codec", row.configuration.codec},
          {"drafts", row.configuration.drafts},
          {"anchors", row.configuration.anchors == AnchorOrder::kFirst ? "first" : "auto"},
          {"anchors_first", anchors_first},
          {"mean_first_s", Mean(row, &Sample::first_s)},
          {"mean_token32_s", Mean(row, &Sample::token32_s)},
          {"mean_end_s", Mean(row, &Sample::end_s)},
          {"tokens_per_s", double(tokens) / row.wall_s},
          {"megabytes", double(bytes) / 1e6},
          {"drafted", drafted},
          {"accepted", accepted},
          {"requests_per_step", double(row.stats.step_inputs) / double(std::max<std::uint64_t>(row.stats.steps, 1))}};
}

void PrintTable(const std::vector<Row>& rows) {
  std::printf("%-34s %8s %8s %8s %9s %8s %8s %8s %9s\n", "configuration", "TT1T s", "TT32T s", "end s", "tokens/s",
              "MB", "drafted", "accepted", "per step");
  for (const Row& row : rows) {
    const nlohmann::json sum = Summary(row);
    std::printf("%-34s %8.2f %8.2f %8.2f %9.1f %8.1f %8d %8d %9.2f\n", row.configuration.Name().c_str(),
                sum["mean_first_s"].get<double>(), sum["mean_token32_s"].get<double>(), sum["mean_end_s"].get<double>(),
                sum["tokens_per_s"].get<double>(), sum["megabytes"].get<double>(), sum["drafted"].get<int>(),
                sum["accepted"].get<int>(), sum["requests_per_step"].get<double>());
  }
  const Row& first = rows.front();
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const nlohmann::json a = Summary(first), b = Summary(rows[i]);
    std::printf("%s / %s: TT1T %.2f, TT32T %.2f, tokens/s %.2f\n", first.configuration.Name().c_str(),
                rows[i].configuration.Name().c_str(), a["mean_first_s"].get<double>() / b["mean_first_s"].get<double>(),
                a["mean_token32_s"].get<double>() / b["mean_token32_s"].get<double>(),
                a["tokens_per_s"].get<double>() / b["tokens_per_s"].get<double>());
  }
}

Status RunAll(const LoadFlags& flags, Stage* stage, std::vector<Row>* rows) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> codecs, SplitCodecs(flags.codecs));
  for (const std::string& codec : codecs) {
    LYNX_RETURN_IF_ERROR(CheckServed(codec));
    LYNX_ASSIGN_OR_RETURN(const auto made, MakeCodec(codec, stage->engine->info().shape));
    rows->push_back({.configuration = {codec}});
    if (made->info().stream_count == 1) continue;
    rows->push_back({.configuration = {codec, false}});
    rows->push_back({.configuration = {codec, true, AnchorOrder::kFirst}});
  }
  std::printf("%d prompts of %d to %d tokens, %d new tokens each, %d at a time; reading the prompts …\n",
              flags.requests, flags.shortest, flags.longest, flags.answer.max_tokens, flags.running);
  std::fflush(stdout);
  Row warm{.configuration = {codecs.front()}};
  LYNX_RETURN_IF_ERROR(RunRound(flags, stage, &warm));
  for (int round = 0; round < flags.rounds; ++round) {
    for (Row& row : *rows) {
      std::fprintf(stderr, "round %d of %d: %s\n", round + 1, flags.rounds, row.configuration.Name().c_str());
      LYNX_RETURN_IF_ERROR(RunRound(flags, stage, &row));
    }
  }
  return Ok();
}

int RunLoad(const LoadFlags& flags) {
  StopFlag();
  Stage stage;
  std::vector<Row> rows;
  if (const Status status = Prepare(flags, &stage); !status.ok()) return Fail("load", status);
  if (const Status status = RunAll(flags, &stage, &rows); !status.ok()) {
    const int code = Fail("load", status);
    return StopFlag() ? kExitInterrupted : code;
  }
  PrintTable(rows);
  nlohmann::json json = {
      {"model", stage.engine->info().model}, {"requests", flags.requests}, {"running", flags.running},
      {"bandwidth", flags.bandwidth},        {"rounds", flags.rounds},     {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) json["rows"].push_back(Summary(row));
  return ExitCode("load", WriteJson(flags.json, json));
}

}  // namespace

void AddLoadCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<LoadFlags>();
  CLI::App* command = app->add_subcommand("load", "many requests at once over a slow link, configurations compared");
  flags->engine.context = 4224;
  flags->engine.AddTo(command);
  command->add_option("--text", flags->text, "prompts are cut from this text")->required()->type_name("FILE");
  AddNumber(command, "--requests", flags->requests, "requests, all sent at once", 1, 4096);
  AddNumber(command, "--running", flags->running, "of them, how many share the engine", 1, 256);
  AddNumber(command, "--shortest", flags->shortest, "tokens of the shortest prompt", 1, 1 << 22);
  AddNumber(command, "--longest", flags->longest, "tokens of the longest prompt", 1, 1 << 22);
  AddNumber(command, "--rounds", flags->rounds, "how often each configuration runs; they take turns", 1, 1000);
  command
      ->add_option("--codecs", flags->codecs,
                   "codecs; those with several streams run without drafts and with anchors first, too")
      ->capture_default_str()
      ->type_name("CODEC")
      ->delimiter(',');
  command->add_option("--bandwidth", flags->bandwidth, "of the link: 200mbit, 1gbit, unlimited")
      ->capture_default_str()
      ->type_name("RATE");
  command->add_option("--delay", flags->delay, "of the link, one way")->capture_default_str()->type_name("TIME");
  AddProfile(command, &flags->profile);
  flags->answer.AddTo(command);
  command->add_option("--json", flags->json, "write the table")->type_name("FILE");
  command->footer(
      "Starts a prefill node and a link as processes and a decode node here. Prompts are read once, then every\n"
      "configuration sends the same caches: the columns are means over requests, from when they were sent.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong use, 130 Ctrl-C.");
  command->callback([flags, exit_code] { *exit_code = RunLoad(*flags); });
}

}  // namespace lynx
