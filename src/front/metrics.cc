#include "front/metrics.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace lynx {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void AppendHead(std::string* text, std::string_view name, std::string_view help, std::string_view type) {
  text->append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ");
  text->append(name).append(" ").append(type).append("\n");
}

void AppendValue(std::string* text, std::string_view name, std::string_view label, std::string_view value) {
  text->append(name);
  if (!label.empty()) text->append("{").append(label).append("}");
  text->append(" ").append(value).append("\n");
}

void AppendOne(std::string* text, std::string_view name, std::string_view help, std::string_view type,
               std::uint64_t value) {
  AppendHead(text, name, help, type);
  AppendValue(text, name, "", std::to_string(value));
}

}  // namespace

void Metrics::Histogram::Add(double seconds) {
  ++counts[std::size_t(std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin())];
  sum += seconds;
}

void Metrics::Histogram::AppendTo(std::string* text, const char* name, const char* help) const {
  AppendHead(text, name, help, "histogram");
  const std::string base = name;
  std::uint64_t up_to = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    up_to += counts[i];
    const std::string bound = i < kBounds.size() ? Number(kBounds[i]) : "+Inf";
    AppendValue(text, base + "_bucket", "le=\"" + bound + "\"", std::to_string(up_to));
  }
  AppendValue(text, base + "_sum", "", Number(sum));
  AppendValue(text, base + "_count", "", std::to_string(up_to));
}

void Metrics::CountRequest(Outcome outcome) {
  const std::lock_guard lock(mutex_);
  ++outcomes_[std::size_t(outcome)];
}

void Metrics::CountAnswer(int prompt_tokens, const GenerateResult& result) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += std::uint64_t(prompt_tokens);
  kept_tokens_ += std::uint64_t(result.kept_tokens);
  reused_tokens_ += std::uint64_t(result.reused_tokens);
  committed_ += result.tokens.size();
  drafted_ += std::uint64_t(result.drafted);
  accepted_ += std::uint64_t(result.accepted);
  retries_ += std::uint64_t(result.retries);
  anchors_first_ += result.anchor_first ? 1 : 0;
  if (stream_bytes_.size() < result.stream_bytes.size()) stream_bytes_.resize(result.stream_bytes.size());
  for (std::size_t i = 0; i < result.stream_bytes.size(); ++i) stream_bytes_[i] += result.stream_bytes[i];
  if (result.ttft_s > 0) ttft_.Add(result.ttft_s);
  if (result.commit_s.size() > 1) first_committed_.Add(result.commit_s[1]);
  const std::vector<double>& done = result.stream_done_s;
  if (!done.empty() && done.front() > 0) anchor_.Add(done.front());
  if (done.size() > 1 && done.back() > 0) residual_.Add(done.back());
  if (result.verify_s > 0) verify_.Add(result.verify_s);
}

std::string Metrics::Text(const EngineLoopStats& engine, int open, bool ready) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  AppendHead(&text, "lynx_requests_total", "Requests for an answer, by how they ended.", "counter");
  constexpr std::array kOutcomes = {"done", "refused", "left", "failed"};
  for (std::size_t i = 0; i < kOutcomes.size(); ++i) {
    AppendValue(&text, "lynx_requests_total", std::string("outcome=\"") + kOutcomes[i] + "\"",
                std::to_string(outcomes_[i]));
  }
  AppendOne(&text, "lynx_prefill_ready", "1 if a prefill node is there.", "gauge", ready ? 1 : 0);
  AppendOne(&text, "lynx_requests_open", "Requests whose client waits.", "gauge", std::uint64_t(open));
  AppendOne(&text, "lynx_requests_running", "Requests that share the engine.", "gauge", std::uint64_t(engine.running));
  AppendOne(&text, "lynx_requests_waiting", "Requests that wait for the engine.", "gauge",
            std::uint64_t(engine.waiting));
  AppendOne(&text, "lynx_steps_total", "Steps of the engine.", "counter", engine.steps);
  AppendOne(&text, "lynx_shared_steps_total", "Steps that more than one request took part in.", "counter",
            engine.shared_steps);
  AppendOne(&text, "lynx_step_inputs_total", "Requests in steps, summed up.", "counter", engine.step_inputs);
  AppendOne(&text, "lynx_prompt_tokens_total", "Tokens of prompts.", "counter", prompt_tokens_);
  AppendOne(&text, "lynx_kept_tokens_total", "Tokens of prompts whose cache was there from a finished conversation.",
            "counter", kept_tokens_);
  AppendOne(&text, "lynx_kept_bytes", "Memory of finished conversations.", "gauge", engine.kept_bytes);
  AppendOne(&text, "lynx_reused_tokens_total", "Tokens of prompts that the prefill node had read before.", "counter",
            reused_tokens_);
  AppendOne(&text, "lynx_committed_tokens_total", "Tokens of answers.", "counter", committed_);
  AppendOne(&text, "lynx_drafted_tokens_total", "Tokens that were drafted.", "counter", drafted_);
  AppendOne(&text, "lynx_accepted_tokens_total", "Drafts that verification kept.", "counter", accepted_);
  AppendOne(&text, "lynx_anchors_first_total", "Answers whose anchor went before later streams of others.", "counter",
            anchors_first_);
  AppendOne(&text, "lynx_retries_total", "Answers that began again on another cache.", "counter", retries_);
  AppendOne(&text, "lynx_parked_total", "Times a request made room for another.", "counter", engine.parked);
  AppendHead(&text, "lynx_stream_bytes_total", "Bytes of page streams received, by stream.", "counter");
  for (std::size_t i = 0; i < stream_bytes_.size(); ++i) {
    AppendValue(&text, "lynx_stream_bytes_total", "stream=\"" + std::to_string(i) + "\"",
                std::to_string(stream_bytes_[i]));
  }
  // All since the request was sent to the prefill node, but the last.
  ttft_.AppendTo(&text, "lynx_ttft_seconds", "Time to the first token chosen here, draft or committed.");
  first_committed_.AppendTo(&text, "lynx_first_committed_seconds", "Time to the first committed token chosen here.");
  anchor_.AppendTo(&text, "lynx_anchor_seconds", "Time until the first stream was complete.");
  residual_.AppendTo(&text, "lynx_residual_seconds", "Time until the last of several streams was complete.");
  verify_.AppendTo(&text, "lynx_verify_seconds", "Time spent on verifying drafts.");
  return text;
}

}  // namespace lynx
