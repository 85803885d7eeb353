// lynx eval: what a codec does to a model.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/crc32c.h"
#include "base/status_macros.h"
#include "baselines/baselines.h"
#include "codec/codec_spec.h"
#include "command.h"
#include "eval/divergence.h"
#include "eval/quality.h"
#include "lynx/version.h"
#include "quality_report.h"

namespace lynx {
namespace {

struct QualityFlags {
  EngineFlags engine;
  std::vector<std::string> texts;
  std::vector<std::string> codecs = {"lynx", "nested", "paper127", "paper", "int8", "int4"};
  int windows = 24;
  int tokens = 64;
  bool quick = false;
  std::string profile;
  std::string json, csv, plot;
};

constexpr int kQuickWindows = 3;
constexpr int kQuickTokens = 16;

using Windows = std::vector<std::vector<Token>>;

// Windows spread evenly over each text, the texts taking turns. kInvalid when a text is shorter than one window.
Result<Windows> CutWindows(const Engine& engine, const QualityFlags& flags) {
  std::vector<std::vector<Token>> texts;
  for (const std::string& path : flags.texts) {
    LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    LYNX_ASSIGN_OR_RETURN(std::vector<Token> tokens, engine.Tokenize(text, false));
    if (int(tokens.size()) < flags.engine.context) {
      return Invalid(path + " has " + std::to_string(tokens.size()) + " tokens, a window needs " +
                     std::to_string(flags.engine.context) + "; give a longer text or a smaller --context");
    }
    texts.push_back(std::move(tokens));
  }
  Windows windows;
  const int per_text = (flags.windows + int(texts.size()) - 1) / int(texts.size());
  for (int i = 0; i < per_text; ++i) {
    for (const std::vector<Token>& tokens : texts) {
      if (int(windows.size()) == flags.windows) break;
      const auto room = std::ptrdiff_t(tokens.size()) - flags.engine.context;
      const auto first = tokens.begin() + (per_text > 1 ? room * i / (per_text - 1) : 0);
      windows.emplace_back(first, first + flags.engine.context);
    }
  }
  return windows;
}

// Figures already measured, one JSON line each, so that an interrupted run goes on where it stopped.
class Progress {
 public:
  Progress(std::string path, std::string identity) : path_(std::move(path)), identity_(std::move(identity)) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      const auto has_text = [&json](const char* name) { return json.contains(name) && json[name].is_string(); };
      if (!has_text("identity") || !has_text("key") || !json.contains("value")) continue;
      if (json["identity"] == identity_) known_[json["key"]] = json["value"];
    }
  }
  const nlohmann::json* Find(const std::string& key) const {
    const auto found = known_.find(key);
    return found == known_.end() ? nullptr : &found->second;
  }
  void Add(const std::string& key, nlohmann::json value) {
    if (path_.empty()) return;
    std::ofstream(path_, std::ios::app)
        << nlohmann::json{{"identity", identity_}, {"key", key}, {"value", std::move(value)}}.dump(
               -1, ' ', false, nlohmann::json::error_handler_t::replace)
        << "\n";
  }
  void Finish() { std::remove(path_.c_str()); }

 private:
  std::string path_, identity_;
  std::map<std::string, nlohmann::json> known_;
};

// A codec or a baseline.
Result<std::unique_ptr<Codec>> MakeMeasured(const std::string& spec, const CacheShape& shape, const Profile* profile) {
  if (IsBaseline(spec)) return MakeBaseline(spec, shape);
  Result<std::unique_ptr<Codec>> codec = MakeCodec(spec, shape, profile);
  if (codec.ok() || codec.status().code() != ErrorCode::kUnsupported) return codec;
  return Unsupported(codec.status().message() + "; baselines are " + ListOf(BaselineNames()));
}

// False for figures of something else, as a damaged file may hold them.
bool Fits(const CodecQuality& quality, const Codec& codec, std::size_t layers) {
  return quality.codec == codec.info().spec && quality.stream_bytes.size() == std::size_t(codec.info().stream_count) &&
         quality.anchor_layers.size() == layers && quality.full_layers.size() == layers;
}

struct Measured {
  std::vector<std::vector<CodecQuality>> codecs;  // [codec][window]
  std::vector<double> floors;
};

Result<Measured> MeasureAll(Engine* engine, const Windows& windows, int tokens,
                            const std::vector<std::unique_ptr<Codec>>& codecs, Progress* progress) {
  QualityOptions options;
  options.tokens = tokens;
  LYNX_ASSIGN_OR_RETURN(QualityMeter meter, QualityMeter::Open(engine, options));
  Measured measured;
  measured.codecs.resize(codecs.size());
  const std::size_t layers = engine->info().shape.layers.size();
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const std::string prefix = std::to_string(w) + " ";
    std::unique_ptr<QualityWindow> window;  // captured only if something of it is missing
    const auto captured = [&]() -> Status {
      if (window) return Ok();
      std::fprintf(stderr, "window %zu of %zu: reading\n", w + 1, windows.size());
      LYNX_ASSIGN_OR_RETURN(QualityWindow fresh, meter.Capture(windows[w]));
      window = std::make_unique<QualityWindow>(std::move(fresh));
      return Ok();
    };
    // Known figures, if they are any, or those of `run`.
    const auto measure = [&]<typename T>(const std::string& key, const std::optional<T>& known,
                                         const auto& run) -> Result<T> {
      if (StopFlag()) return IoError("stopped; the same command goes on from here");
      if (known) return *known;
      LYNX_RETURN_IF_ERROR(captured());
      std::fprintf(stderr, "window %zu of %zu: %s\n", w + 1, windows.size(), key.c_str());
      LYNX_ASSIGN_OR_RETURN(T value, run());
      progress->Add(prefix + key, ToJson(value));
      return value;
    };
    const std::string floor_key = "noise floor";
    LYNX_ASSIGN_OR_RETURN(const double floor, measure(floor_key, NumberFromJson(progress->Find(prefix + floor_key)),
                                                      [&] { return meter.NoiseFloor(*window, w); }));
    measured.floors.push_back(floor);
    for (std::size_t c = 0; c < codecs.size(); ++c) {
      const std::string& spec = codecs[c]->info().spec;
      std::optional<CodecQuality> known = QualityFromJson(progress->Find(prefix + spec));
      if (known && !Fits(*known, *codecs[c], layers)) known.reset();
      LYNX_ASSIGN_OR_RETURN(CodecQuality quality,
                            measure(spec, known, [&] { return meter.Measure(*window, *codecs[c]); }));
      measured.codecs[c].push_back(std::move(quality));
    }
  }
  return measured;
}

// What must be equal for figures of an earlier run to count: not names, but what files hold.
std::string Identity(const Engine& engine, const Windows& windows, const std::optional<Profile>& profile, int tokens) {
  std::uint32_t text = 0;
  for (const std::vector<Token>& window : windows) text = Crc32c(std::as_bytes(std::span(window)), text);
  return std::string(Version()) + " " + std::string(BuildCommit()) + " " + engine.info().model + " " +
         engine.info().revision + " " + std::to_string(windows.size()) + " " + std::to_string(windows.front().size()) +
         " " + std::to_string(text) + " " + (profile ? std::to_string(Crc32c(profile->bytes)) : "-") + " " +
         std::to_string(tokens);
}

Status RunQuality(QualityFlags flags) {
  if (flags.quick) {
    flags.windows = std::min(flags.windows, kQuickWindows);
    flags.tokens = std::min(flags.tokens, kQuickTokens);
  }
  const std::string partial = flags.json.empty() ? "" : flags.json + ".partial";
  for (const std::string& path : {flags.json, partial, flags.csv, flags.plot}) {
    LYNX_RETURN_IF_ERROR(CheckWritable(path));
  }
  EngineFlags engine_flags = flags.engine;
  engine_flags.context += std::max(flags.tokens, QualityOptions{}.drafts) + 1;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(engine_flags, EngineUse::kDecode, 1));
  LYNX_ASSIGN_OR_RETURN(const std::optional<Profile> profile, ReadProfile(flags.profile));
  std::vector<std::unique_ptr<Codec>> codecs;
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> specs, SplitCodecs(flags.codecs));
  for (const std::string& spec : specs) {
    LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec,
                          MakeMeasured(spec, engine->info().shape, profile ? &*profile : nullptr));
    codecs.push_back(std::move(codec));
  }
  LYNX_ASSIGN_OR_RETURN(const Windows windows, CutWindows(*engine, flags));
  Progress progress(partial, Identity(*engine, windows, profile, flags.tokens));
  LYNX_ASSIGN_OR_RETURN(const Measured measured, MeasureAll(engine.get(), windows, flags.tokens, codecs, &progress));
  std::vector<CodecSummary> summaries;
  for (const auto& of_codec : measured.codecs) summaries.push_back(Summarize(of_codec));
  const double floor = GeometricMean(measured.floors, 1e-12);
  std::printf("%s", QualityTable(floor, summaries).c_str());
  const QualitySettings settings{engine->info().model, flags.engine.weights, flags.engine.context, flags.tokens,
                                 int(measured.floors.size())};
  LYNX_RETURN_IF_ERROR(WriteJson(flags.json, QualityJson(settings, floor, summaries)));
  if (!flags.csv.empty()) LYNX_RETURN_IF_ERROR(WriteFile(flags.csv, QualityCsv(floor, summaries)));
  if (!flags.plot.empty()) LYNX_RETURN_IF_ERROR(WriteFile(flags.plot, QualityPlot(floor, summaries)));
  progress.Finish();
  return Ok();
}

}  // namespace

void AddEvalCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<QualityFlags>();
  CLI::App* eval = app->add_subcommand("eval", "measure what codecs do to a model");
  eval->require_subcommand(1);
  CLI::App* command =
      eval->add_subcommand("quality", "bits, errors, KL divergence and accepted drafts of codecs on a real cache");
  flags->engine.context = 2048;
  flags->engine.AddTo(command, "tokens of a window");
  flags->engine.AddWeightsTo(command);
  command->add_option("--text", flags->texts, "texts that windows are cut from; take several of different kinds")
      ->required()
      ->type_name("FILE");
  AddNumber(command, "--windows", flags->windows, "windows, spread evenly over the texts", 1, 10000);
  AddNumber(command, "--tokens", flags->tokens, "tokens of the continuation that KL is averaged over", 1, 4096);
  command
      ->add_option("--codecs", flags->codecs,
                   "codecs and baselines with parameters: nested,paper:alpha=4,int8,kivi:bits=2")
      ->capture_default_str()
      ->type_name("CODEC");
  AddProfile(command, &flags->profile);
  command->add_flag("--quick", flags->quick, "at most 3 windows and 16 tokens: a first look, not a figure to publish");
  command->add_option("--json", flags->json, "write everything; FILE.partial lets an interrupted run go on")
      ->type_name("FILE");
  command->add_option("--csv", flags->csv, "write the table")->type_name("FILE");
  command->add_option("--plot", flags->plot, "write an SVG of bits against KL")->type_name("FILE");
  command->footer(
      "KL is in nats, of the model's next-token distributions, teacher-forced on the greedy continuation of the BF16 "
      "cache,\n"
      "geometric mean over windows. It differs by 2-3 times between texts: compare codecs inside one run only.");
  command->callback([flags, exit_code] {
    const Status status = RunQuality(*flags);
    *exit_code = status.ok() ? kExitOk : StopFlag() ? kExitInterrupted : Fail("eval quality", status);
  });
}

}  // namespace lynx
