#include "quality_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string_view>

#include "eval/divergence.h"
#include "lynx/version.h"
#include "report.h"

namespace lynx {
namespace {

constexpr double kSmallestKl = 1e-9;  // a window without any difference still has a logarithm
constexpr std::uint64_t kBootstrapSeed = 1;

template <typename... Values>
std::string Line(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::vector<double> Each(const std::vector<CodecQuality>& windows, double CodecQuality::*field) {
  std::vector<double> values;
  for (const CodecQuality& window : windows) values.push_back(window.*field);
  return values;
}

double Mean(const std::vector<CodecQuality>& windows, const std::function<double(const CodecQuality&)>& of) {
  double sum = 0;
  for (const CodecQuality& window : windows) sum += of(window);
  return sum / double(windows.size());
}

CacheError MeanError(const std::vector<CodecQuality>& windows,
                     const std::function<CacheError(const CodecQuality&)>& of) {
  return {Mean(windows, [&](const CodecQuality& q) { return of(q).key; }),
          Mean(windows, [&](const CodecQuality& q) { return of(q).value; }),
          Mean(windows, [&](const CodecQuality& q) { return of(q).attention; })};
}

double TotalBits(const CodecSummary& codec) {
  return std::accumulate(codec.stream_bits.begin(), codec.stream_bits.end(), 0.0);
}

nlohmann::json LayersJson(const std::vector<CacheError>& layers) {
  nlohmann::json json = nlohmann::json::array();
  for (const CacheError& layer : layers)
    json.push_back({{"k", layer.key}, {"v", layer.value}, {"attn", layer.attention}});
  return json;
}

nlohmann::json ErrorJson(const CacheError& error) { return {error.key, error.value, error.attention}; }
CacheError ErrorFrom(const nlohmann::json& json) { return {json.at(0), json.at(1), json.at(2)}; }

}  // namespace

CodecSummary Summarize(const std::vector<CodecQuality>& windows) {
  CodecSummary summary;
  summary.codec = windows.front().codec;
  const double elements = Mean(windows, [](const CodecQuality& q) { return double(q.elements); });
  for (std::size_t k = 0; k < windows.front().stream_bytes.size(); ++k) {
    summary.stream_bits.push_back(Mean(windows, [k](const CodecQuality& q) { return double(q.stream_bytes[k]); }) * 8 /
                                  elements);
  }
  summary.anchor = MeanError(windows, [](const CodecQuality& q) { return q.anchor; });
  summary.full = MeanError(windows, [](const CodecQuality& q) { return q.full; });
  for (std::size_t layer = 0; layer < windows.front().full_layers.size(); ++layer) {
    summary.anchor_layers.push_back(
        MeanError(windows, [layer](const CodecQuality& q) { return q.anchor_layers[layer]; }));
    summary.full_layers.push_back(MeanError(windows, [layer](const CodecQuality& q) { return q.full_layers[layer]; }));
  }
  const auto anchor_full = Each(windows, &CodecQuality::kl_anchor_full);
  const auto full_bf16 = Each(windows, &CodecQuality::kl_full_bf16);
  if (windows.front().stream_bytes.size() > 1) {
    summary.kl_anchor_full = GeometricMean(anchor_full, kSmallestKl);
    const Interval interval = BootstrapInterval(anchor_full, kSmallestKl, kBootstrapSeed);
    summary.kl_anchor_full_low = interval.low;
    summary.kl_anchor_full_high = interval.high;
  }
  summary.kl_full_bf16 = GeometricMean(full_bf16, kSmallestKl);
  const Interval interval = BootstrapInterval(full_bf16, kSmallestKl, kBootstrapSeed);
  summary.kl_full_bf16_low = interval.low;
  summary.kl_full_bf16_high = interval.high;
  summary.kl_anchor_bf16 = GeometricMean(Each(windows, &CodecQuality::kl_anchor_bf16), kSmallestKl);
  summary.top1_anchor_full = Mean(windows, [](const CodecQuality& q) { return q.top1_anchor_full; });
  summary.top1_full_bf16 = Mean(windows, [](const CodecQuality& q) { return q.top1_full_bf16; });
  summary.top1_anchor_bf16 = Mean(windows, [](const CodecQuality& q) { return q.top1_anchor_bf16; });
  summary.drafted = Mean(windows, [](const CodecQuality& q) { return double(q.drafted); });
  summary.accepted = Mean(windows, [](const CodecQuality& q) { return double(q.accepted); });
  const auto at_least = [&](int count) {
    return Mean(windows, [count](const CodecQuality& q) { return q.accepted >= count ? 1.0 : 0.0; });
  };
  summary.at_least_10 = at_least(10);
  summary.at_least_21 = at_least(21);
  summary.at_least_64 = at_least(64);
  summary.encode_gelem_s = elements / 1e9 / Mean(windows, [](const CodecQuality& q) { return q.encode_s; });
  summary.decode_gelem_s = elements / 1e9 / Mean(windows, [](const CodecQuality& q) { return q.decode_s; });
  return summary;
}

nlohmann::json QualityJson(const QualitySettings& settings, double noise_floor,
                           const std::vector<CodecSummary>& codecs) {
  nlohmann::json json = {{"version", Version()},
                         {"commit", BuildCommit()},
                         {"cpu", CpuName()},
                         {"model", settings.model},
                         {"weights", settings.weights},
                         {"context", settings.context},
                         {"windows", settings.windows},
                         {"tokens", settings.tokens},
                         {"noise_floor_kl", noise_floor},
                         {"codecs", nlohmann::json::array()}};
  for (const CodecSummary& c : codecs) {
    json["codecs"].push_back({
        {"codec", c.codec},
        {"bits", {{"anchor", c.stream_bits.front()}, {"total", TotalBits(c)}, {"streams", c.stream_bits}}},
        {"nmse",
         {{"k_anchor", c.anchor.key},
          {"v_anchor", c.anchor.value},
          {"k_full", c.full.key},
          {"v_full", c.full.value},
          {"attn_anchor", c.anchor.attention},
          {"attn_full", c.full.attention}}},
        {"kl", {{"anchor_full", c.kl_anchor_full}, {"full_bf16", c.kl_full_bf16}, {"anchor_bf16", c.kl_anchor_bf16}}},
        {"kl_interval",
         {{"anchor_full", {c.kl_anchor_full_low, c.kl_anchor_full_high}},
          {"full_bf16", {c.kl_full_bf16_low, c.kl_full_bf16_high}}}},
        {"top1",
         {{"anchor_full", c.top1_anchor_full}, {"full_bf16", c.top1_full_bf16}, {"anchor_bf16", c.top1_anchor_bf16}}},
        {"accepted_mean", c.accepted},
        {"drafted_mean", c.drafted},
        {"p_ge", {{"10", c.at_least_10}, {"21", c.at_least_21}, {"64", c.at_least_64}}},
        {"encode_gelem_s", c.encode_gelem_s},
        {"decode_gelem_s", c.decode_gelem_s},
        {"layers", {{"anchor", LayersJson(c.anchor_layers)}, {"full", LayersJson(c.full_layers)}}},
    });
  }
  return json;
}

std::string QualityCsv(double noise_floor, const std::vector<CodecSummary>& codecs) {
  std::string text =
      "codec,anchor_bits,total_bits,k_anchor,v_anchor,attn_anchor,k_full,v_full,attn_full,kl_anchor_full,kl_full_bf16,"
      "kl_anchor_bf16,top1_anchor_full,top1_full_bf16,drafted,accepted,p_ge_21,encode_gelem_s,decode_gelem_s\n";
  for (const CodecSummary& c : codecs) {
    text += Line("\"%s\",%.4f,%.4f,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4g,%.4f,%.4f,%.2f,%.2f,%.3f,%.3f,%.3f\n",
                 c.codec.c_str(), c.stream_bits.front(), TotalBits(c), c.anchor.key, c.anchor.value, c.anchor.attention,
                 c.full.key, c.full.value, c.full.attention, c.kl_anchor_full, c.kl_full_bf16, c.kl_anchor_bf16,
                 c.top1_anchor_full, c.top1_full_bf16, c.drafted, c.accepted, c.at_least_21, c.encode_gelem_s,
                 c.decode_gelem_s);
  }
  return text + Line("\"noise floor\",,,,,,,,,,%.4g,,,,,,,,\n", noise_floor);
}

std::string QualityTable(double noise_floor, const std::vector<CodecSummary>& codecs) {
  int width = int(std::string_view("noise floor").size());
  for (const CodecSummary& c : codecs) width = std::max(width, int(c.codec.size()));
  std::string text = Line("%-*s %6s %6s  %-17s %-17s %9s %6s %9s %9s %8s %5s %11s\n", width, "codec", "anchor", "total",
                          "NMSE K/V anchor", "NMSE K/V full", "KL anchor", "top-1", "KL full", "attn anc.", "accepted",
                          "P>=21", "Gelem/s e/d");
  for (const CodecSummary& c : codecs) {
    text += Line("%-*s %6.3f %6.3f  %.1e / %.1e %.1e / %.1e %9.2e %6.3f %9.2e %9.1e %8.1f %5.2f %5.2f/%.2f\n", width,
                 c.codec.c_str(), c.stream_bits.front(), TotalBits(c), c.anchor.key, c.anchor.value, c.full.key,
                 c.full.value, c.kl_anchor_full, c.top1_anchor_full, c.kl_full_bf16, c.anchor.attention, c.accepted,
                 c.at_least_21, c.encode_gelem_s, c.decode_gelem_s);
  }
  return text + Line("%-*s %67s%9.2e\n", width, "noise floor", "", noise_floor);
}

std::string QualityPlot(double noise_floor, const std::vector<CodecSummary>& codecs) {
  constexpr double kLeft = 70, kTop = 30, kWidth = 560, kHeight = 380, kMaxBits = 16;
  constexpr double kLowest = -5, kHighest = 0;  // decades of KL
  const auto x = [&](double bits) { return kLeft + bits / kMaxBits * kWidth; };
  const auto y = [&](double kl) {
    const double decade = std::clamp(std::log10(std::max(kl, 1e-12)), kLowest, kHighest);
    return kTop + (kHighest - decade) / (kHighest - kLowest) * kHeight;
  };
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"470\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n"
      "<rect width=\"720\" height=\"470\" fill=\"white\"/>\n";
  for (int bits = 0; bits <= int(kMaxBits); bits += 2) {
    svg += Line(
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%.1f\" "
        "text-anchor=\"middle\">%d</text>\n",
        x(bits), kTop, x(bits), kTop + kHeight, x(bits), kTop + kHeight + 16, bits);
  }
  for (int decade = int(kLowest); decade <= int(kHighest); ++decade) {
    const double at = y(std::pow(10.0, decade));
    svg += Line(
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%.1f\" "
        "text-anchor=\"end\">1e%d</text>\n",
        kLeft, at, kLeft + kWidth, at, kLeft - 6, at + 4, decade);
  }
  svg += Line("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>\n",
              kLeft, y(noise_floor), kLeft + kWidth, y(noise_floor));
  for (const CodecSummary& c : codecs) {
    const std::string name = c.codec.substr(0, 28);
    if (c.stream_bits.size() > 1) {
      svg += Line("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#c0392b\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                  x(c.stream_bits.front()), y(c.kl_anchor_full), x(c.stream_bits.front()) + 6, y(c.kl_anchor_full) + 4,
                  name.c_str());
    }
    svg += Line("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#2c6fbb\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                x(TotalBits(c)), y(c.kl_full_bf16), x(TotalBits(c)) + 6, y(c.kl_full_bf16) + 4, name.c_str());
  }
  return svg +
         "<text x=\"70\" y=\"455\">bits per element. Red: anchor, KL(full || anchor); blue: all streams, KL(BF16 || "
         "full); dashed: noise floor"
         "</text>\n<text x=\"70\" y=\"20\">KL, nats</text>\n</svg>\n";
}

nlohmann::json ToJson(const CodecQuality& q) {
  nlohmann::json json = {{"codec", q.codec},
                         {"stream_bytes", q.stream_bytes},
                         {"elements", q.elements},
                         {"anchor", ErrorJson(q.anchor)},
                         {"full", ErrorJson(q.full)},
                         {"kl", {q.kl_anchor_full, q.kl_full_bf16, q.kl_anchor_bf16}},
                         {"top1", {q.top1_anchor_full, q.top1_full_bf16, q.top1_anchor_bf16}},
                         {"drafted", q.drafted},
                         {"accepted", q.accepted},
                         {"encode_s", q.encode_s},
                         {"decode_s", q.decode_s}};
  for (const CacheError& layer : q.anchor_layers) json["anchor_layers"].push_back(ErrorJson(layer));
  for (const CacheError& layer : q.full_layers) json["full_layers"].push_back(ErrorJson(layer));
  return json;
}

// Throws what nlohmann::json throws.
static CodecQuality ReadQuality(const nlohmann::json& json) {
  CodecQuality q;
  q.codec = json.at("codec");
  q.stream_bytes = json.at("stream_bytes").get<std::vector<std::uint64_t>>();
  q.elements = json.at("elements");
  q.anchor = ErrorFrom(json.at("anchor"));
  q.full = ErrorFrom(json.at("full"));
  q.kl_anchor_full = json.at("kl").at(0);
  q.kl_full_bf16 = json.at("kl").at(1);
  q.kl_anchor_bf16 = json.at("kl").at(2);
  q.top1_anchor_full = json.at("top1").at(0);
  q.top1_full_bf16 = json.at("top1").at(1);
  q.top1_anchor_bf16 = json.at("top1").at(2);
  q.drafted = json.at("drafted");
  q.accepted = json.at("accepted");
  q.encode_s = json.at("encode_s");
  q.decode_s = json.at("decode_s");
  for (const auto& layer : json.at("anchor_layers")) q.anchor_layers.push_back(ErrorFrom(layer));
  for (const auto& layer : json.at("full_layers")) q.full_layers.push_back(ErrorFrom(layer));
  return q;
}

std::optional<CodecQuality> QualityFromJson(const nlohmann::json* json) {
  if (json == nullptr) return std::nullopt;
  try {
    return ReadQuality(*json);
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<double> NumberFromJson(const nlohmann::json* json) {
  if (json == nullptr || !json->is_number()) return std::nullopt;
  return json->get<double>();
}

}  // namespace lynx
