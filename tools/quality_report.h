// What `lynx eval quality` found, over windows: JSON, CSV, a table, a plot.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "eval/quality.h"

namespace lynx {

struct QualitySettings {
  std::string model;
  std::string weights;
  int context = 0;
  int tokens = 0;
  int windows = 0;
};

// Figures of one codec over all windows.
struct CodecSummary {
  std::string codec;
  std::vector<double> stream_bits;  // per element
  CacheError anchor, full;
  std::vector<CacheError> anchor_layers, full_layers;
  double kl_anchor_full = 0, kl_full_bf16 = 0, kl_anchor_bf16 = 0;  // geometric means
  double kl_anchor_full_low = 0, kl_anchor_full_high = 0, kl_full_bf16_low = 0, kl_full_bf16_high = 0;
  double top1_anchor_full = 0, top1_full_bf16 = 0, top1_anchor_bf16 = 0;
  double drafted = 0, accepted = 0;  // means
  double at_least_10 = 0, at_least_21 = 0, at_least_64 = 0;
  double encode_gelem_s = 0, decode_gelem_s = 0;
};

// All of one codec, one entry per window.
CodecSummary Summarize(const std::vector<CodecQuality>& windows);

nlohmann::json QualityJson(const QualitySettings& settings, double noise_floor,
                           const std::vector<CodecSummary>& codecs);
std::string QualityCsv(double noise_floor, const std::vector<CodecSummary>& codecs);
std::string QualityTable(double noise_floor, const std::vector<CodecSummary>& codecs);
// SVG: anchor bits against KL of the anchor, total bits against KL to BF16; both axes of KL logarithmic.
std::string QualityPlot(double noise_floor, const std::vector<CodecSummary>& codecs);

// Figures of one window, so that an interrupted run can go on; nothing from null or from JSON of another form.
nlohmann::json ToJson(const CodecQuality& quality);
inline nlohmann::json ToJson(double number) { return number; }
std::optional<CodecQuality> QualityFromJson(const nlohmann::json* json);
std::optional<double> NumberFromJson(const nlohmann::json* json);

}  // namespace lynx
