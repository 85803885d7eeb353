#include "front/api_reply.h"

#include <nlohmann/json.hpp>

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;

// Tokens of a model need not be UTF-8.
std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string Event(const Json& json, std::string_view name = {}) {
  const std::string event = name.empty() ? std::string() : "event: " + std::string(name) + "\n";
  return event + "data: " + Dump(json) + "\n\n";
}

Json Head(const ReplyHead& head, std::string_view chat_object) {
  return {{"id", head.id},
          {"object", head.kind == ApiKind::kChat ? chat_object : "text_completion"},
          {"created", head.created},
          {"model", head.model}};
}

Json ChunkHead(const ReplyHead& head) { return Head(head, "chat.completion.chunk"); }

std::string ChoiceChunk(const ReplyHead& head, const Json& content, const Json& finish_reason) {
  Json json = ChunkHead(head);
  json["choices"] = Json::array({{{"index", 0},
                                  {head.kind == ApiKind::kChat ? "delta" : "text", content},
                                  {"logprobs", nullptr},
                                  {"finish_reason", finish_reason}}});
  return Event(json);
}

std::string_view PhaseWord(Phase phase) {
  switch (phase) {
    case Phase::kPrefill:
      return "prefill";
    case Phase::kStream:
      return "stream";
    case Phase::kRefine:
      return "refine";
    case Phase::kDraft:
      return "draft";
    case Phase::kRecheck:
      return "recheck";
    case Phase::kVerify:
      return "verify";
    case Phase::kDecode:
      return "decode";
  }
  return "unknown";
}

Json Usage(int prompt_tokens, const GenerateResult& result, bool timeline) {
  const auto time_of = [&result](std::size_t token) -> Json {
    return token < result.commit_s.size() ? Json(result.commit_s[token]) : Json(nullptr);
  };
  Json lynx = {{"codec", result.codec},
               {"bytes", result.stream_bytes},
               {"drafted", result.drafted},
               {"accepted", result.accepted},
               {"anchor_first", result.anchor_first},
               {"most_drafts", result.most_drafts},
               {"retries", result.retries},
               {"kept_tokens", result.kept_tokens},
               {"reused_tokens", result.reused_tokens},
               {"prefill_end_s", result.prefill_end_s},
               {"ttft_s", result.ttft_s},
               {"ttft_kind", result.ttft_is_draft ? "draft" : "committed"},
               {"tt1t_s", time_of(1)},
               {"stream_done_s", result.stream_done_s},
               {"verify_s", result.verify_s},
               {"last_token_s", result.commit_s.empty() ? Json(nullptr) : Json(result.commit_s.back())}};
  if (timeline) {
    lynx["timeline"] = Json::array();
    for (const Span& span : result.timeline) {
      lynx["timeline"].push_back({{"phase", PhaseWord(span.phase)},
                                  {"stream", span.stream},
                                  {"begin_s", span.begin_s},
                                  {"end_s", span.end_s},
                                  {"tokens", span.tokens}});
    }
  }
  const std::size_t completion = result.tokens.size();
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion},
          {"total_tokens", std::size_t(prompt_tokens) + completion},
          {"prompt_tokens_details", {{"cached_tokens", result.kept_tokens}}},
          {"lynx", std::move(lynx)}};
}

std::string_view ErrorType(int status) {
  if (status == 401) return "authentication_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

Json Error(int status, std::string_view message, std::string_view param, std::string_view code) {
  const auto or_null = [](std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); };
  return {{"error",
           {{"message", message}, {"type", ErrorType(status)}, {"param", or_null(param)}, {"code", or_null(code)}}}};
}

std::string_view FinishWord(FinishReason reason) {
  const bool stop = reason == FinishReason::kEndOfText || reason == FinishReason::kStopped;
  return stop ? "stop" : "length";
}

}  // namespace

std::string AnswerJson(const ReplyHead& head, const GenerateResult& result) {
  Json json = Head(head, "chat.completion");
  Json choice = {{"index", 0}};
  if (head.kind == ApiKind::kChat) {
    choice["message"] = {{"role", "assistant"}, {"content", result.text}, {"refusal", nullptr}};
  } else {
    choice["text"] = result.text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = FinishWord(result.reason);
  json["choices"] = Json::array({std::move(choice)});
  json["usage"] = Usage(head.prompt_tokens, result, false);
  return Dump(json);
}

std::string RoleChunk(const ReplyHead& head) {
  return ChoiceChunk(head, {{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::string TextChunk(const ReplyHead& head, std::string_view text) {
  return ChoiceChunk(head, head.kind == ApiKind::kChat ? Json{{"content", text}} : Json(text), nullptr);
}

std::string FinishChunk(const ReplyHead& head, FinishReason reason) {
  return ChoiceChunk(head, head.kind == ApiKind::kChat ? Json::object() : Json(""), FinishWord(reason));
}

std::string UsageChunk(const ReplyHead& head, const GenerateResult& result, bool timeline) {
  Json json = ChunkHead(head);
  json["choices"] = Json::array();
  json["usage"] = Usage(head.prompt_tokens, result, timeline);
  return Event(json);
}

std::string DraftChunk(const ReplyHead& head, DraftEvent event, std::size_t position, std::size_t count,
                       std::string_view text) {
  const std::string_view name = event == DraftEvent::kDraft    ? "draft"
                                : event == DraftEvent::kCommit ? "commit"
                                                               : "rollback";
  Json json = ChunkHead(head);
  json["choices"] = Json::array();
  json["lynx"] = {{"event", name}, {"position", position}, {"count", count}, {"text", text}};
  return Event(json, name);
}

std::string ErrorEvent(int status, std::string_view message) { return Event(Error(status, message, {}, {})); }

std::string StreamDone() { return "data: [DONE]\n\n"; }

int HttpStatusOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kUnsupported:
      return 400;
    // Of this node or a prefill node: there is no room now. 429 would say that this client asks too often.
    case ErrorCode::kLimit:
    case ErrorCode::kIo:
      return 503;
    default:
      return 500;
  }
}

HttpResponse ErrorResponse(int status, std::string_view message, std::string_view param, std::string_view code) {
  HttpResponse response;
  response.status = status;
  response.body = Dump(Error(status, message, param, code)) + "\n";
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse ModelsResponse(const std::string& model, std::int64_t created) {
  const Json entry = {{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "lynx"}};
  HttpResponse response;
  response.body = Dump({{"object", "list"}, {"data", Json::array({entry})}}) + "\n";
  return response;
}

}  // namespace lynx
