// lynx top: a node's counters, live in a terminal.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "command.h"
#include "front/http_get.h"

namespace lynx {
namespace {

using Clock = std::chrono::steady_clock;

struct TopFlags {
  std::string http = "127.0.0.1:8080";
  double interval_s = 1;
  int count = 0;
  bool json = false;
};

// /metrics at one moment: names with their labels, as they stand there, and values.
struct Counters {
  Clock::time_point time;
  std::map<std::string, double, std::less<>> values;

  double Get(std::string_view name) const {
    const auto found = values.find(name);
    return found == values.end() ? 0 : found->second;
  }
};

Result<Counters> ReadCounters(const TopFlags& flags) {
  const char* key = std::getenv("LYNX_API_KEY");
  LYNX_ASSIGN_OR_RETURN(const std::string text, HttpGet(flags.http, "/metrics", key == nullptr ? "" : key));
  Counters counters{Clock::now(), {}};
  std::string_view left = text;
  while (!left.empty()) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    const std::size_t space = line.rfind(' ');
    if (line.starts_with("#") || space == std::string_view::npos) continue;
    double value = 0;
    const std::string_view number = line.substr(space + 1);
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc()) continue;
    counters.values[std::string(line.substr(0, space))] = value;
  }
  if (!counters.values.contains("lynx_steps_total")) return Unsupported(flags.http + " is no node of Lynx");
  return counters;
}

// What happened between two moments.
class Change {
 public:
  Change(const Counters& before, const Counters& now)
      : before_(before), now_(now), seconds_(std::chrono::duration<double>(now.time - before.time).count()) {}

  double Now(const std::string& name) const { return now_.Get("lynx_" + name); }
  // A node that was started again counts from 0.
  double Of(const std::string& name) const {
    const double change = Now(name) - before_.Get("lynx_" + name);
    return change < 0 ? Now(name) : change;
  }
  double PerSecond(const std::string& name) const { return Of(name) / seconds_; }
  // Null when nothing happened.
  nlohmann::json Ratio(const std::string& of, const std::string& to) const {
    return Of(to) == 0 ? nlohmann::json() : nlohmann::json(Of(of) / Of(to));
  }
  nlohmann::json Mean(const std::string& histogram) const { return Ratio(histogram + "_sum", histogram + "_count"); }

 private:
  const Counters& before_;
  const Counters& now_;
  const double seconds_;
};

nlohmann::json Summary(const Change& change) {
  nlohmann::json json = {
      {"prefill_ready", change.Now("prefill_ready") > 0},
      {"open", change.Now("requests_open")},
      {"running", change.Now("requests_running")},
      {"waiting", change.Now("requests_waiting")},
      {"tokens_per_s", change.PerSecond("committed_tokens_total")},
      {"drafts_per_s", change.PerSecond("drafted_tokens_total")},
      {"accepted_share", change.Ratio("accepted_tokens_total", "drafted_tokens_total")},
      {"steps_per_s", change.PerSecond("steps_total")},
      {"requests_per_step", change.Ratio("step_inputs_total", "steps_total")},
      {"retries", change.Now("retries_total")},
      {"parked", change.Now("parked_total")},
      {"stream_bytes_per_s", nlohmann::json::array()},
  };
  for (const char* outcome : {"done", "refused", "left", "failed"}) {
    json[outcome] = change.Now(std::string("requests_total{outcome=\"") + outcome + "\"}");
  }
  for (const char* time : {"ttft", "first_committed", "anchor", "residual", "verify"}) {
    json[std::string(time) + "_s"] = change.Mean(std::string(time) + "_seconds");
  }
  for (int stream = 0;; ++stream) {
    const std::string name = "stream_bytes_total{stream=\"" + std::to_string(stream) + "\"}";
    if (change.Now(name) == 0) break;
    json["stream_bytes_per_s"].push_back(change.PerSecond(name));
  }
  return json;
}

std::string Number(const nlohmann::json& value, const char* format) {
  if (value.is_null()) return "–";
  char text[32];
  std::snprintf(text, sizeof text, format, value.get<double>());
  return text;
}

std::string Screen(const TopFlags& flags, const nlohmann::json& sum) {
  const auto whole = [&sum](const char* name) { return Number(sum[name], "%.0f"); };
  const auto seconds = [&sum](const char* name) { return Number(sum[name], "%.2f s"); };
  std::string streams;
  for (std::size_t i = 0; i < sum["stream_bytes_per_s"].size(); ++i) {
    streams += (i == 0 ? "" : "   ") + ("stream " + std::to_string(i) + " ") +
               Number(sum["stream_bytes_per_s"][i].get<double>() / 1e6, "%.1f MB/s");
  }
  const nlohmann::json& share = sum["accepted_share"];
  const std::string accepted = share.is_null() ? "–" : Number(share.get<double>() * 100, "%.0f %%");
  const char* const ready = sum["prefill_ready"] ? "a prefill node is there" : "no prefill node is there";
  std::string text = "lynx top   " + flags.http + "   " + ready + "\n\n";
  text += "requests   open " + whole("open") + "   running " + whole("running") + "   waiting " + whole("waiting") +
          "   done " + whole("done") + "   refused " + whole("refused") + "   left " + whole("left") + "   failed " +
          whole("failed") + "   retries " + whole("retries") + "\n";
  text += "tokens     committed " + Number(sum["tokens_per_s"], "%.1f/s") + "   drafted " +
          Number(sum["drafts_per_s"], "%.1f/s") + "   accepted " + accepted + "\n";
  text += "engine     steps " + Number(sum["steps_per_s"], "%.1f/s") + "   requests per step " +
          Number(sum["requests_per_step"], "%.2f") + "   parked " + whole("parked") + "\n";
  text += "link       " + (streams.empty() ? "–" : streams) + "\n";
  text += "answers    first token " + seconds("ttft_s") + "   first committed " + seconds("first_committed_s") +
          "   anchor " + seconds("anchor_s") + "   residual " + seconds("residual_s") + "   verify " +
          seconds("verify_s") + "\n";
  return text;
}

// False: told to stop.
bool Sleep(double seconds) {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (!StopFlag() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !StopFlag();
}

int RunTop(const TopFlags& flags) {
  StopFlag();
  Result<Counters> before = ReadCounters(flags);
  if (!before.ok()) return Fail("top", before.status());
  const bool live = isatty(STDOUT_FILENO) == 1 && !flags.json;
  for (int shown = 0; flags.count == 0 || shown < flags.count; ++shown) {
    if (!Sleep(flags.interval_s)) return kExitInterrupted;
    Result<Counters> now = ReadCounters(flags);
    if (live) std::printf("\033[H\033[2J");
    if (!now.ok()) {
      if (!live) return Fail("top", now.status());
      std::printf("lynx top   %s\n", now.status().message().c_str());  // it may come back
    } else {
      const nlohmann::json sum = Summary(Change(*before, *now));
      std::printf("%s\n", flags.json ? sum.dump().c_str() : Screen(flags, sum).c_str());
      before = std::move(now);
    }
    std::fflush(stdout);
  }
  return kExitOk;
}

}  // namespace

void AddTopCommand(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<TopFlags>();
  CLI::App* command = app->add_subcommand("top", "a node's counters, live");
  command->add_option("--http", flags->http, "of `lynx decode` or `lynx serve`")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  AddNumber(command, "--interval", flags->interval_s, "between two looks", 0.1, 3600, "SECONDS");
  AddNumber(command, "--count", flags->count, "looks, then end; 0: until Ctrl-C", 0, 1 << 30);
  command->add_flag("--json", flags->json, "one line of JSON for each look");
  command->footer(
      "Rates and mean times are those of the last interval, the rest is now or in all; – where nothing happened.\n"
      "A node that wants an API key gets it from LYNX_API_KEY.\n"
      "Exit codes: 0 done, 1 nobody answers, 2 wrong use, 130 Ctrl-C.");
  command->callback([flags, exit_code] { *exit_code = RunTop(*flags); });
}

}  // namespace lynx
