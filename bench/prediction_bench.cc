// Two ideas that are not in the `lynx` codec, measured: prediction of levels across layers, and coded residuals.
// `prediction_bench --help` says how.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "command.h"
#include "eval/page_trip.h"
#include "eval/quality.h"
#include "lynx/version.h"
#include "prediction_kernel.h"
#include "prediction_rates.h"

namespace lynx {
namespace {

struct Flags {
  EngineFlags engine;
  std::vector<std::string> train, test;
  int windows = 1;
  std::string profile;
  std::vector<double> anchor_bits = {1.35, 2.25, 3};
  std::string json;
};

// Per element of K, of V, and of both.
struct Bits {
  double of[2] = {}, count[2] = {};
  void Add(KvKind kind, double bits) { of[int(kind)] += bits; }
  double Each(int kind) const { return of[kind] / count[kind]; }
  double All() const { return (of[0] + of[1]) / (count[0] + count[1]); }
};

// One text at one rate.
struct TextFigures {
  Bits stream0, none, whole, quarter, residuals, residuals_predicted;
  ResidualCounts counts;
};
struct RateFigures {
  double anchor_bits = 0;
  std::vector<TextFigures> texts;  // as in --test
  std::size_t weight_bytes = 0;
  double multiply_adds = 0;  // per element
};

struct KernelFigures {
  int channels = 0, inputs = 0;
  double gelem_s = 0;
};

// The caches of `count` windows spread evenly over a text.
Status Capture(QualityMeter* meter, const Engine& engine, const std::string& path, int context, int count,
               std::vector<CacheBlock>* caches) {
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LYNX_ASSIGN_OR_RETURN(const std::vector<Token> tokens, engine.Tokenize(text, false));
  const std::ptrdiff_t room = std::ptrdiff_t(tokens.size()) - context;
  if (room < 0) {
    return Invalid(path + " has " + std::to_string(tokens.size()) + " tokens, a window needs " +
                   std::to_string(context) + "; give a longer text or a smaller --context");
  }
  for (int i = 0; i < count; ++i) {
    if (StopFlag()) return IoError("stopped");
    std::fprintf(stderr, "%s: window %d of %d\n", OneLine(path).c_str(), i + 1, count);
    const auto first = tokens.begin() + (count > 1 ? room * i / (count - 1) : 0);
    LYNX_ASSIGN_OR_RETURN(QualityWindow window, meter->Capture({first, first + context}));
    caches->push_back(std::move(window.cache));
  }
  return Ok();
}

// What a layer's K or V is predicted from: K from the layer before it, V from its own K and from the V before it.
std::vector<const QuantizedRows*> InputsOf(KvKind kind, const QuantizedRows& key, const QuantizedRows before[2]) {
  std::vector<const QuantizedRows*> inputs;
  if (kind == KvKind::kValue) inputs.push_back(&key);
  if (kind == KvKind::kKey && before[0].channels > 0) inputs.push_back(&before[0]);
  if (before[1].channels > 0) inputs.push_back(&before[1]);
  return inputs;
}

struct Layer {
  QuantizedRows rows[2], before[2];  // [kind]
};

void AddText(const Layer& layer, KvKind kind, const Predictor* predictor, TextFigures* figures) {
  const QuantizedRows& rows = layer.rows[int(kind)];
  for (Bits* bits : {&figures->stream0, &figures->none, &figures->whole, &figures->quarter, &figures->residuals,
                     &figures->residuals_predicted}) {
    bits->count[int(kind)] += double(rows.nested.size());
  }
  const RowBits none = BitsOf(rows, nullptr, 0);
  RowBits whole = none, quarter = none;
  if (predictor != nullptr) {
    const auto levels = LevelsOf(InputsOf(kind, layer.rows[0], layer.before));
    std::vector<std::int16_t> quarters(std::size_t(rows.tokens()) * std::size_t(predictor->width));
    Predict(*predictor, levels.data(), rows.tokens(), quarters.data());
    quarter = BitsOf(rows, quarters.data(), predictor->width);
    for (std::int16_t& each : quarters) each = std::int16_t((each + 2) & ~3);
    whole = BitsOf(rows, quarters.data(), predictor->width);
  }
  figures->stream0.Add(kind, 8.0 * double(rows.stream0_bytes));
  figures->none.Add(kind, none.levels);
  figures->whole.Add(kind, whole.levels);
  figures->quarter.Add(kind, quarter.levels);
  figures->residuals.Add(kind, none.residuals);
  figures->residuals_predicted.Add(kind, quarter.residuals);
  figures->counts.Add(rows);
}

std::optional<Predictor> Train(const std::vector<Layer>& windows, KvKind kind) {
  std::vector<std::vector<std::int8_t>> inputs;
  std::vector<const QuantizedRows*> targets;
  for (const Layer& window : windows) {
    inputs.push_back(LevelsOf(InputsOf(kind, window.rows[0], window.before)));
    targets.push_back(&window.rows[int(kind)]);
  }
  if (inputs.front().empty()) return std::nullopt;
  const int outputs = targets.front()->channels, count = int(inputs.front().size()) / targets.front()->tokens();
  return Predictor(FitWeights(inputs, targets), count, outputs);
}

// Layer by layer, since a cache's levels take more room than the cache.
Result<RateFigures> MeasureRate(const std::vector<CacheBlock>& train, const std::vector<CacheBlock>& test,
                                double anchor_bits, const Profile* profile) {
  char spec[64];
  std::snprintf(spec, sizeof(spec), "lynx:anchor_bits=%g", anchor_bits);
  const CacheShape& shape = test.front().shape();
  LYNX_ASSIGN_OR_RETURN(const WatchedCodec codec, WatchedCodec::Make(spec, shape, profile));
  RateFigures figures;
  figures.anchor_bits = anchor_bits;
  figures.texts.resize(test.size());
  std::vector<Layer> train_layers(train.size()), test_layers(test.size());
  double multiply_adds = 0, outputs = 0;
  for (int layer = 0; layer < int(shape.layers.size()); ++layer) {
    if (StopFlag()) return IoError("stopped");
    std::fprintf(stderr, "%s: layer %d of %zu\n", spec, layer + 1, shape.layers.size());
    const auto quantize = [&](const std::vector<CacheBlock>& caches, std::vector<Layer>* layers) -> Status {
      for (std::size_t i = 0; i < caches.size(); ++i) {
        for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
          (*layers)[i].before[int(kind)] = std::move((*layers)[i].rows[int(kind)]);
          LYNX_ASSIGN_OR_RETURN((*layers)[i].rows[int(kind)], codec.Quantize(caches[i], layer, kind));
        }
      }
      return Ok();
    };
    LYNX_RETURN_IF_ERROR(quantize(train, &train_layers));
    LYNX_RETURN_IF_ERROR(quantize(test, &test_layers));
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const std::optional<Predictor> predictor = Train(train_layers, kind);
      for (std::size_t i = 0; i < test.size(); ++i) {
        AddText(test_layers[i], kind, predictor ? &*predictor : nullptr, &figures.texts[i]);
      }
      outputs += test_layers.front().rows[int(kind)].channels;
      if (!predictor) continue;
      figures.weight_bytes += predictor->Bytes();
      multiply_adds += double(predictor->inputs) * predictor->outputs;
    }
  }
  figures.multiply_adds = multiply_adds / outputs;
  return figures;
}

// The best of several runs. Processor time, because others may use the machine.
double LeastSeconds(int runs, const std::function<void()>& work) {
  double least = 1e30;
  for (int i = 0; i < runs; ++i) {
    const std::clock_t begin = std::clock();
    work();
    least = std::min(least, double(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return least;
}

// Whether the kernel does what a plain loop does, for the first tokens.
bool KernelIsRight(const Predictor& p, const std::vector<std::int8_t>& levels,
                   const std::vector<std::int16_t>& quarters) {
  for (int at = 0; at < 7 * p.outputs; ++at) {
    const int token = at / p.outputs, output = at % p.outputs;
    std::int32_t sum = 0;
    for (int i = 0; i < p.inputs; ++i) {
      sum += levels[std::size_t(token * p.inputs + i)] * p.weights[std::size_t(2 * (i / 2 * p.width + output) + i % 2)];
    }
    const float expected = std::nearbyint(float(sum) * p.scales[std::size_t(output)]);
    if (float(quarters[std::size_t(token * p.width + output)]) != expected) return false;
  }
  return true;
}

// Predicting 16 pages of this many channels from twice as many.
KernelFigures MeasureKernel(int channels) {
  constexpr int kTokens = 16 * 256, kRuns = 9;
  KernelFigures figures{channels, 2 * channels};
  Random random(1);
  std::vector<double> weights(std::size_t(figures.inputs) * std::size_t(channels));
  for (double& weight : weights) weight = random.Unit() - 0.5;
  const Predictor predictor(weights, figures.inputs, channels);
  std::vector<std::int8_t> levels(std::size_t(figures.inputs) * kTokens);
  for (std::int8_t& level : levels) level = std::int8_t(int(random.Below(17)) - 8);
  std::vector<std::int16_t> quarters(std::size_t(predictor.width) * kTokens);
  const double seconds = LeastSeconds(kRuns, [&] { Predict(predictor, levels.data(), kTokens, quarters.data()); });
  LYNX_CHECK(KernelIsRight(predictor, levels, quarters));
  figures.gelem_s = double(channels) * kTokens / seconds / 1e9;
  return figures;
}

// Stream 0 of a whole cache on one core, in 10^9 elements per second.
Result<double> MeasureDecode(const CacheBlock& cache, const Profile* profile) {
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeCodec("lynx", cache.shape(), profile));
  CacheBlock decoded(cache.shape(), 0, cache.token_count());
  PageTrip trip(codec.get());
  const auto pages = PagesOf(cache.shape(), 0, cache.token_count(), codec->info().page_tokens, 1);
  std::vector<std::vector<std::vector<std::byte>>> streams;
  for (const PageAddress& page : pages) {
    LYNX_ASSIGN_OR_RETURN(auto encoded, trip.Encode(cache, page));
    encoded.resize(1);
    streams.push_back(std::move(encoded));
  }
  Status status;
  const double seconds = LeastSeconds(9, [&] {
    for (std::size_t i = 0; i < pages.size() && status.ok(); ++i) status = trip.Decode(streams[i], pages[i], &decoded);
  });
  LYNX_RETURN_IF_ERROR(status);
  return double(cache.shape().ElementsPerToken()) * cache.token_count() / seconds / 1e9;
}

std::string Cells(const Bits& bits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f %.3f %.3f", bits.Each(0), bits.Each(1), bits.All());
  return text;
}

void PrintRate(const Flags& flags, const RateFigures& rate) {
  std::printf("\nanchor_bits=%g\n%-22s %9s  %-18s %-18s %-18s %6s  %-18s %8s %10s\n", rate.anchor_bits,
              "bits: K, V, both", "stream 0", "levels", "whole prediction", "quarter prediction", "saved",
              "residuals (of 4)", "counted", "predicted");
  for (std::size_t i = 0; i < rate.texts.size(); ++i) {
    const TextFigures& f = rate.texts[i];
    const std::string name = flags.test[i].substr(flags.test[i].rfind('/') + 1);
    std::printf("%-22s %9.3f  %-18s %-18s %-18s %6.3f  %-18s %8.3f %10.3f\n", OneLine(name).substr(0, 22).c_str(),
                f.stream0.All(), Cells(f.none).c_str(), Cells(f.whole).c_str(), Cells(f.quarter).c_str(),
                f.none.All() - f.quarter.All(), Cells(f.residuals).c_str(), f.counts.BitsPerElement(),
                f.residuals_predicted.All());
  }
  std::printf("%.0f multiply-adds per element, weights %.2f MB\n", rate.multiply_adds, double(rate.weight_bytes) / 1e6);
}

nlohmann::json ToJson(const Bits& bits) { return {{"k", bits.Each(0)}, {"v", bits.Each(1)}, {"all", bits.All()}}; }

nlohmann::json ToJson(const Flags& flags, const RateFigures& rate) {
  nlohmann::json texts = nlohmann::json::array();
  for (std::size_t i = 0; i < rate.texts.size(); ++i) {
    const TextFigures& f = rate.texts[i];
    texts.push_back({{"text", flags.test[i]},
                     {"stream0", ToJson(f.stream0)},
                     {"levels", ToJson(f.none)},
                     {"whole", ToJson(f.whole)},
                     {"quarter", ToJson(f.quarter)},
                     {"residuals", ToJson(f.residuals)},
                     {"residuals_counted", f.counts.BitsPerElement()},
                     {"residuals_predicted", ToJson(f.residuals_predicted)}});
  }
  return {{"anchor_bits", rate.anchor_bits},
          {"multiply_adds", rate.multiply_adds},
          {"weight_bytes", rate.weight_bytes},
          {"texts", texts}};
}

Status RunBench(const Flags& flags) {
  if (!TablesAgree()) return EngineError("the tables made here are not the codec's; this bench is out of date");
  LYNX_RETURN_IF_ERROR(CheckWritable(flags.json));
  EngineFlags engine_flags = flags.engine;
  QualityOptions options;
  options.tokens = 1;
  engine_flags.context += options.tokens + 1;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(engine_flags, EngineUse::kDecode, 1));
  for (const LayerShape& layer : engine->info().shape.layers) {
    if (layer.value_dim == 0) return Unsupported("this model's cache has no V; take one with K and V");
  }
  LYNX_ASSIGN_OR_RETURN(const std::optional<Profile> profile, ReadProfile(flags.profile));
  const Profile* const used = profile ? &*profile : nullptr;
  LYNX_ASSIGN_OR_RETURN(QualityMeter meter, QualityMeter::Open(engine.get(), options));
  std::vector<CacheBlock> train, test;
  for (const std::string& path : flags.train) {
    LYNX_RETURN_IF_ERROR(Capture(&meter, *engine, path, flags.engine.context, flags.windows, &train));
  }
  for (const std::string& path : flags.test) {
    LYNX_RETURN_IF_ERROR(Capture(&meter, *engine, path, flags.engine.context, 1, &test));
  }
  nlohmann::json json = {{"version", Version()},
                         {"commit", BuildCommit()},
                         {"model", engine->info().model},
                         {"weights", flags.engine.weights},
                         {"context", flags.engine.context},
                         {"train", flags.train},
                         {"windows", flags.windows},
                         {"target", PredictorTarget()}};
  for (const double bits : flags.anchor_bits) {
    LYNX_ASSIGN_OR_RETURN(const RateFigures rate, MeasureRate(train, test, bits, used));
    PrintRate(flags, rate);
    json["rates"].push_back(ToJson(flags, rate));
  }
  LYNX_ASSIGN_OR_RETURN(const double decode, MeasureDecode(test.front(), used));
  json["decode_gelem_s"] = decode;
  std::printf("\none core, %s, 10^9 elements per second: decoding stream 0 %.3f", PredictorTarget(), decode);
  for (const int channels : {192, 1024}) {
    const KernelFigures kernel = MeasureKernel(channels);
    std::printf("; predicting %d channels from %d %.3f (%.2f of decoding)", channels, kernel.inputs, kernel.gelem_s,
                kernel.gelem_s / decode);
    json["kernels"].push_back({{"channels", channels}, {"inputs", kernel.inputs}, {"gelem_s", kernel.gelem_s}});
  }
  std::printf("\n");
  if (flags.json.empty()) return Ok();
  return WriteFile(flags.json, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

constexpr const char* kDescription =
    "Would prediction across layers or coded residuals make the lynx codec's streams smaller, and at what cost?\n\n"
    "Every layer's anchor levels are predicted linearly from anchor levels that a decoder would have: K from K and V "
    "of "
    "the layer before, V from its own layer's K and the V before. Weights (int8) are fitted on --train by ridge "
    "regression and judged on --test. The quantizer's grid stays where it is, so decoded values, and KL with them, are "
    "the codec's own: only bits change.";
constexpr const char* kFooter =
    "Columns, bits per coded element (K, V, both):\n"
    "  stream 0            all its bytes as the codec writes them, sinks and recent residuals included\n"
    "  levels              its levels alone, by the codec's tables\n"
    "  whole prediction    the same less a prediction rounded to whole levels\n"
    "  quarter prediction  rounded to quarters of a level, with a table for each of four phases\n"
    "  saved               levels less quarter prediction\n"
    "  residuals           the 4 residual bits given the level, by the density of the channel's class\n"
    "  counted             their entropy given class and level: no static table takes less\n"
    "  predicted           the first of these with the quarter prediction known\n"
    "Pages of a head that prediction would make longer go without it, at one bit each.\n"
    "Example: prediction_bench --model M.gguf --profile P --train a.py LICENSE --test b.py manual.txt";

int Main(int argc, char** argv) {
#ifndef NDEBUG
  std::fprintf(stderr, "prediction_bench: built with asserts on, its figures would mislead; use the release preset\n");
  return kExitFailed;
#endif
  Flags flags;
  CLI::App app(kDescription, "prediction_bench");
  app.footer(kFooter);
  flags.engine.context = 2048;
  flags.engine.AddTo(&app, "tokens of a window");
  flags.engine.AddWeightsTo(&app);
  app.add_option("--train", flags.train, "texts to fit the predictors on")->required()->type_name("FILE");
  app.add_option("--windows", flags.windows, "windows of each training text, spread evenly")
      ->capture_default_str()
      ->type_name("N")
      ->check(Between(1, 64));
  app.add_option("--test", flags.test, "texts to measure on, the first window of each; none of --train")
      ->required()
      ->type_name("FILE");
  app.add_option("--profile", flags.profile, "what lynx calibrate wrote; without it every head has one step")
      ->type_name("FILE");
  app.add_option("--anchor-bits", flags.anchor_bits, "rates of the lynx codec")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("B")
      ->check(Between(1.2, 4.5));
  app.add_option("--json", flags.json, "the figures, in full precision")->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  (void)StopFlag();  // from here on Ctrl-C stops between layers
  const Status status =
      flags.engine.context < 256 ? Invalid("--context must be at least a page, 256") : RunBench(flags);
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "prediction_bench: %s\n", OneLine(status.message()).c_str());
  return StopFlag() ? kExitInterrupted : status.code() == ErrorCode::kInvalid ? kExitUsage : kExitFailed;
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) { return lynx::Main(argc, argv); }
