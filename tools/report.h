// What a run showed: as JSON for scripts, as a table and a timeline for people.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "serve/decode_node.h"

namespace lynx {

struct RunSettings {
  std::string model;
  int prompt_tokens = 0;
  double bandwidth_bps = 0;  // 0: not known
  double delay_s = 0;
  double copy_bps = 0;  // goodput of a plain TCP copy over the same link; 0: not measured
};

struct RunRow {
  bool overlap = true;
  GenerateResult result;
};

// docs/measuring.md explains each field.
nlohmann::json ReportJson(const RunSettings& settings, const std::vector<RunRow>& rows);

// Streams, drafts, verification and commits of one run on a common time axis, `width` columns wide.
std::string Timeline(const GenerateResult& result, int width);

// One row per run. Sizes in MB; times in seconds since the prompt was read ("read s" since the request).
std::string Table(const std::vector<RunRow>& rows);
// How near stream 0 comes to the link's ideal, goodput against a plain copy, and the first run's times over the
// others'.
std::string Comparison(const RunSettings& settings, const std::vector<RunRow>& rows);

// "AMD EPYC …" of /proc/cpuinfo, or "unknown".
std::string CpuName();

}  // namespace lynx
