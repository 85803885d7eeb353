#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "lynx/version.h"

namespace lynx {
namespace {

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::uint64_t Total(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

// When the n-th token after token 0 was committed; null if the answer was shorter.
nlohmann::json CommittedAt(const GenerateResult& result, std::size_t count) {
  return count < result.commit_s.size() ? nlohmann::json(result.commit_s[count]) : nlohmann::json(nullptr);
}

// The earliest that stream 0 can be here: its bytes with framing at the link's rate, and the delay, from the first
// grant.
double AnchorIdeal(const RunSettings& settings, const GenerateResult& result) {
  return result.first_grant_s + double(result.stream_wire_bytes.at(0)) * 8 / settings.bandwidth_bps + settings.delay_s;
}

bool HasAnchorIdeal(const RunSettings& settings, const RunRow& row) {
  return !row.overlap && settings.bandwidth_bps > 0 && row.result.stream_done_s.at(0) > 0;
}

// Bits per second of the whole transfer with framing, from the first grant to the last byte.
double Goodput(const GenerateResult& result) {
  const double seconds = result.stream_done_s.back() - result.first_grant_s;
  return seconds > 0 ? double(Total(result.stream_wire_bytes)) * 8 / seconds : 0;
}

nlohmann::json RunJson(const RunSettings& settings, const RunRow& row) {
  const GenerateResult& result = row.result;
  const double elements = double(result.elements);
  nlohmann::json run = {
      {"codec", result.codec},
      {"overlap", row.overlap ? "on" : "off"},
      {"bytes",
       {{"streams", result.stream_bytes},
        {"total", Total(result.stream_bytes)},
        {"wire", Total(result.stream_wire_bytes)}}},
      {"elements", result.elements},
      {"bits_per_element",
       {{"anchor", double(result.stream_bytes.at(0)) * 8 / elements},
        {"total", double(Total(result.stream_bytes)) * 8 / elements}}},
      {"prefill_end_s", result.prefill_end_s},
      {"prefill_node_s", result.prefill_node_s},
      {"reused_tokens", result.reused_tokens},
      {"first_token_exact_s", result.prefill_end_s},
      {"ttft_s", result.ttft_s},
      {"ttft_kind", result.ttft_is_draft ? "draft" : "committed"},
      {"tt_s", {{"1", CommittedAt(result, 1)}, {"32", CommittedAt(result, 32)}, {"64", CommittedAt(result, 64)}}},
      {"first_grant_s", result.first_grant_s},
      {"anchor_done_s", result.stream_done_s.at(0)},
      {"anchor_ideal_s", nullptr},
      {"stream_done_s", result.stream_done_s},
      {"goodput_bps", Goodput(result)},
      {"drafted", result.drafted},
      {"accepted", result.accepted},
      {"verify_s", result.verify_s},
      {"peak_kv_bytes", result.peak_kv_bytes},
      {"exact", nullptr},
      {"tokens", result.tokens},
  };
  if (HasAnchorIdeal(settings, row)) run["anchor_ideal_s"] = AnchorIdeal(settings, result);
  if (result.checked) run["exact"] = result.exact;
  return run;
}

std::string Seconds(double seconds) { return seconds > 0 ? Format("%.2f", seconds) : "-"; }

// Since the prompt was read.
std::string CommittedText(const GenerateResult& result, std::size_t count) {
  return count < result.commit_s.size() ? Seconds(result.commit_s[count] - result.prefill_end_s) : "-";
}

std::string ShortName(const GenerateResult& result) { return result.codec.substr(0, result.codec.find(':')); }

std::string Megabytes(std::uint64_t bytes) { return Format("%.1f", double(bytes) / 1e6); }

char PhaseMark(Phase phase) {
  switch (phase) {
    case Phase::kPrefill:
      return 'P';
    case Phase::kStream:
      return '=';
    case Phase::kRefine:
      return 'R';
    case Phase::kDraft:
      return 'd';
    case Phase::kRecheck:
      return 'r';
    case Phase::kVerify:
      return 'V';
    case Phase::kDecode:
      return '.';
  }
  return '?';
}

// One line of the timeline: the spans that `wanted` picks, as marks between begin and end.
template <typename Wanted>
std::string Lane(const GenerateResult& result, const std::string& name, double end_s, int width, Wanted wanted) {
  std::string lane(std::size_t(width), ' ');
  bool any = false;
  for (const Span& span : result.timeline) {
    if (!wanted(span)) continue;
    any = true;
    const int from = std::clamp(int(span.begin_s / end_s * width), 0, width - 1);
    const int to = std::clamp(int(std::ceil(span.end_s / end_s * width)), from + 1, width);
    std::fill(lane.begin() + from, lane.begin() + to, PhaseMark(span.phase));
  }
  return any ? Format("  %-10s|%s|\n", name.c_str(), lane.c_str()) : "";
}

}  // namespace

nlohmann::json ReportJson(const RunSettings& settings, const std::vector<RunRow>& rows) {
  nlohmann::json report = {
      {"version", Version()},
      {"commit", BuildCommit()},
      {"cpu", CpuName()},
      {"model", settings.model},
      {"prompt_tokens", settings.prompt_tokens},
      {"bandwidth_bps", settings.bandwidth_bps},
      {"delay_s", settings.delay_s},
      {"copy_bps", settings.copy_bps > 0 ? nlohmann::json(settings.copy_bps) : nlohmann::json(nullptr)},
      {"runs", nlohmann::json::array()},
  };
  for (const RunRow& row : rows) report["runs"].push_back(RunJson(settings, row));
  return report;
}

std::string Timeline(const GenerateResult& result, int width) {
  double end_s = 0;
  for (const Span& span : result.timeline) end_s = std::max(end_s, span.end_s);
  if (end_s == 0) return "";
  std::string text =
      Lane(result, "prefill", end_s, width, [](const Span& span) { return span.phase == Phase::kPrefill; });
  for (int stream = 0; stream < int(result.stream_done_s.size()); ++stream) {
    const std::string name = stream == 0 && result.stream_done_s.size() > 1 ? "anchor"
                             : stream == 0                                  ? "cache"
                                                                            : "residual";
    text += Lane(result, name, end_s, width,
                 [stream](const Span& span) { return span.phase == Phase::kStream && span.stream == stream; });
  }
  text += Lane(result, "engine", end_s, width,
               [](const Span& span) { return span.phase != Phase::kStream && span.phase != Phase::kPrefill; });
  return text + Format("  %-10s0 s%*.2f s\n", "", width - 2, end_s);
}

std::string Table(const std::vector<RunRow>& rows) {
  std::string text =
      Format("%-9s %-7s %6s %6s %7s %11s %6s %6s %6s %9s %9s %6s %7s %5s\n", "codec", "overlap", "anchor", "total",
             "read s", "TTFT s", "TT1T", "TT32T", "TT64T", "drafted", "accepted", "verify", "peak MB", "exact");
  for (const RunRow& row : rows) {
    const GenerateResult& r = row.result;
    text += Format("%-9s %-7s %6s %6s %7.2f %5.2f %-5s %6s %6s %6s %9d %9d %6s %7s %5s\n", ShortName(r).c_str(),
                   row.overlap ? "on" : "off", Megabytes(r.stream_bytes.at(0)).c_str(),
                   Megabytes(Total(r.stream_bytes)).c_str(), r.prefill_end_s, r.ttft_s - r.prefill_end_s,
                   r.ttft_is_draft ? "draft" : "final", CommittedText(r, 1).c_str(), CommittedText(r, 32).c_str(),
                   CommittedText(r, 64).c_str(), r.drafted, r.accepted, Seconds(r.verify_s).c_str(),
                   Megabytes(r.peak_kv_bytes).c_str(),
                   !r.checked ? "-"
                   : r.exact  ? "yes"
                              : "NO");
  }
  return text;
}

std::string Comparison(const RunSettings& settings, const std::vector<RunRow>& rows) {
  std::string text;
  for (const RunRow& row : rows) {
    if (!HasAnchorIdeal(settings, row)) continue;
    const GenerateResult& r = row.result;
    const double took = r.stream_done_s[0] - r.first_grant_s;
    const double ideal = AnchorIdeal(settings, r) - r.first_grant_s;
    text += Format("%-9s stream 0 in %.3f s, ideal %.3f s: %.3f x; all streams at %.1f Mbit/s", ShortName(r).c_str(),
                   took, ideal, took / ideal, Goodput(r) / 1e6);
    if (settings.copy_bps > 0) text += Format(", %.1f %% of a plain copy", 100 * Goodput(r) / settings.copy_bps);
    text += "\n";
  }
  if (rows.empty() || rows.front().overlap) return text;
  const GenerateResult& first = rows.front().result;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const GenerateResult& other = rows[i].result;
    if (rows[i].overlap) continue;
    text += Format("%s / %s:%*s TTFT %.2f", ShortName(first).c_str(), ShortName(other).c_str(),
                   int(10 - std::min<std::size_t>(9, ShortName(other).size())), "",
                   (first.ttft_s - first.prefill_end_s) / (other.ttft_s - other.prefill_end_s));
    for (const int count : {1, 32, 64}) {
      if (std::size_t(count) >= std::min(first.commit_s.size(), other.commit_s.size())) continue;
      text += Format("   TT%dT %.2f", count,
                     (first.commit_s[count] - first.prefill_end_s) / (other.commit_s[count] - other.prefill_end_s));
    }
    text += "\n";
  }
  return text;
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      const auto at = line.find(':');
      if (at != std::string::npos && at + 2 <= line.size()) return line.substr(at + 2);
    }
  }
  return "unknown";
}

}  // namespace lynx
