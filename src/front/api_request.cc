#include "front/api_request.h"

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "lynx/speculate.h"
#include "speculate/stop.h"

namespace lynx {
namespace {

using Json = nlohmann::json;

constexpr int kMaxTokens = 1 << 22;
constexpr int kMaxDrafts = 1024;
constexpr std::size_t kMaxNameBytes = 256;  // of models and codecs

// Before a parser believes it: how deep it is and how many values it has at most, strings left out.
Status CheckShape(std::string_view text, std::size_t max_values) {
  int depth = 0;
  std::size_t values = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == ']' || c == '}') --depth;
    if (c == '[' || c == '{') ++depth;
    if (c == '[' || c == '{' || c == ',' || c == ':') ++values;
    if (depth > kMaxJsonDepth) return Invalid("the JSON is nested too deeply");
    if (values > max_values) return Invalid("the JSON has too many values");
  }
  return Ok();
}

// The fields of an object. The first that is wrong sets *param and *status; null is the same as absent.
class Fields {
 public:
  Fields(const Json& object, std::string prefix, std::string* param, Status* status)
      : object_(object), prefix_(std::move(prefix)), param_(param), status_(status) {}
  // The fields of an object in this one.
  Fields Inner(const std::string& name) const { return {object_[name], prefix_ + name + ".", param_, status_}; }

  const Json* Find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void Fail(const std::string& name, const std::string& message) {
    if (!status_->ok()) return;
    *param_ = prefix_ + name;
    *status_ = Invalid("\"" + *param_ + "\" " + message);
  }

  void Bool(const char* name, bool* to) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail(name, "must be true or false");
    *to = value->get<bool>();
  }

  void String(const char* name, std::size_t max_bytes, std::string* to) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(name, "must be a string");
    *to = value->get<std::string>();
    if (to->size() > max_bytes) Fail(name, "is longer than " + std::to_string(max_bytes) + " bytes");
  }

  void Integer(const char* name, int low, int high, std::optional<int>* to) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    const bool whole = value->is_number_integer();
    const std::int64_t number = whole ? value->get<std::int64_t>() : 0;
    // One above the largest int64 reads as negative.
    if (!whole || number < low || number > high || (number < 0 && value->is_number_unsigned())) {
      return Fail(name, "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *to = int(number);
  }

  void Number(const char* name, int low, int high, float* to) {
    const Json* value = Find(name);
    if (value == nullptr) return;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number < low || number > high) {
      return Fail(name, "must be a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *to = float(number);
  }

  bool ok() const { return status_->ok(); }

 private:
  const Json& object_;
  const std::string prefix_;
  std::string* const param_;
  Status* const status_;
};

bool IsTokens(const Json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_number_integer(); });
}

void ReadPrompt(Fields* fields, ApiPrompt* prompt) {
  const Json* value = fields->Find("prompt");
  if (value == nullptr) return fields->Fail("prompt", "is missing");
  if (value->is_array() && value->size() == 1 && !value->front().is_number()) value = &value->front();
  if (value->is_string() && !value->get_ref<const std::string&>().empty()) {
    *prompt = value->get<std::string>();
  } else if (IsTokens(*value)) {
    std::vector<Token> tokens;
    for (const Json& item : *value) {
      const auto id = item.get<std::int64_t>();
      if (id < 0 || id > std::numeric_limits<Token>::max())
        return fields->Fail("prompt", "has a token id out of range");
      tokens.push_back(Token(id));
    }
    *prompt = std::move(tokens);
  } else {
    fields->Fail("prompt", "must be one text that is not empty, or one list of token ids");
  }
}

// A string, or parts of which each is text.
bool ReadContent(const Json& content, std::string* text) {
  if (content.is_string()) {
    *text = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return false;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.value("text", Json()).is_string())
      return false;
    *text += part["text"].get<std::string>();
  }
  return true;
}

void ReadMessages(Fields* fields, ApiPrompt* prompt) {
  const Json* list = fields->Find("messages");
  if (list == nullptr) return fields->Fail("messages", "is missing");
  if (!list->is_array() || list->empty()) return fields->Fail("messages", "must be a list with at least one message");
  std::vector<ChatMessage> messages;
  for (const Json& item : *list) {
    ChatMessage message;
    const Json role = item.is_object() ? item.value("role", Json()) : Json();
    if (role == "system" || role == "user" || role == "assistant") message.role = role.get<std::string>();
    if (role == "developer") message.role = "system";
    if (message.role.empty()) {
      return fields->Fail("messages", "has a message whose role is not system, developer, user or assistant");
    }
    if (!ReadContent(item.value("content", Json()), &message.content)) {
      return fields->Fail("messages", "has a message whose content is neither a text nor a list of texts");
    }
    // Chat templates take strings that end at the first one.
    if (message.content.find('\0') != std::string::npos) return fields->Fail("messages", "has a NUL character");
    messages.push_back(std::move(message));
  }
  *prompt = std::move(messages);
}

void ReadStop(Fields* fields, std::vector<std::string>* stop) {
  const Json* value = fields->Find("stop");
  if (value == nullptr) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& item : list) {
    if (!item.is_string()) return fields->Fail("stop", "must be a string or a list of strings");
    stop->push_back(item.get<std::string>());
  }
  const Status status = CheckStops(*stop);
  if (!status.ok()) fields->Fail("stop", "can't be used: " + status.message());
}

void ReadSampling(Fields* fields, ApiRequest* request) {
  SamplingOptions* sampling = &request->sampling;
  fields->Number("temperature", 0, 100, &sampling->temperature);
  fields->Number("top_p", 0, 1, &sampling->top_p);
  fields->Number("min_p", 0, 1, &sampling->min_p);
  std::optional<int> top_k;
  fields->Integer("top_k", -1, std::numeric_limits<int>::max(), &top_k);
  sampling->top_k = std::max(top_k.value_or(0), 0);  // -1 is "off" in vLLM and llama-server
  if (const Json* seed = fields->Find("seed")) {
    if (!seed->is_number_integer()) return fields->Fail("seed", "must be a whole number");
    request->has_seed = true;
    sampling->seed = seed->is_number_unsigned() ? seed->get<std::uint64_t>() : std::uint64_t(seed->get<std::int64_t>());
  }
  if (!fields->ok()) return;
  const Status status = CheckSampling(*sampling);
  if (!status.ok()) fields->Fail("top_p", "can't be used: " + status.message());
}

// What would change the answer and is not served, unless it has the value that changes nothing.
void RefuseUnserved(Fields* fields) {
  const auto refuse_unless = [fields](const char* name, std::initializer_list<Json> harmless) {
    const Json* value = fields->Find(name);
    if (value == nullptr || std::find(harmless.begin(), harmless.end(), *value) != harmless.end()) return;
    fields->Fail(name, "is not supported by this server");
  };
  const Json none = Json::array(), empty = Json::object();
  for (const char* name : {"n", "best_of"}) refuse_unless(name, {1});
  for (const char* name : {"frequency_penalty", "presence_penalty"}) refuse_unless(name, {0});
  for (const char* name : {"logprobs", "echo"}) refuse_unless(name, {false});
  for (const char* name : {"tools", "functions"}) refuse_unless(name, {none});
  for (const char* name : {"tool_choice", "function_call"}) refuse_unless(name, {"none", "auto"});
  refuse_unless("top_logprobs", {0});
  refuse_unless("suffix", {""});
  refuse_unless("logit_bias", {empty});
  refuse_unless("response_format", {Json{{"type", "text"}}});
  refuse_unless("modalities", {Json::array({"text"})});
  refuse_unless("audio", {});
}

void ReadMaxTokens(Fields* fields, ApiRequest* request) {
  fields->Integer("max_tokens", 1, kMaxTokens, &request->max_tokens);
  fields->Integer("max_completion_tokens", 1, kMaxTokens, &request->max_tokens);
  // OpenAI's default for completions; a chat goes on to the end of the context.
  if (request->kind == ApiKind::kCompletion && !request->max_tokens) request->max_tokens = 16;
}

void ReadStreaming(Fields* fields, ApiRequest* request) {
  fields->Bool("stream", &request->stream);
  const Json* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields->Fail("stream_options", "must be an object");
  if (!request->stream) return fields->Fail("stream_options", "needs \"stream\": true");
  fields->Inner("stream_options").Bool("include_usage", &request->include_usage);
}

// Our own: nothing unknown is ignored here.
void ReadLynx(Fields* fields, ApiRequest* request) {
  const Json* object = fields->Find("lynx");
  if (object == nullptr) return;
  if (!object->is_object()) return fields->Fail("lynx", "must be an object");
  Fields inner = fields->Inner("lynx");
  for (const auto& item : object->items()) {
    const std::string& key = item.key();
    if (key != "drafts" && key != "codec" && key != "max_drafts") {
      inner.Fail(key.substr(0, 64), "is not known; there are drafts, codec and max_drafts");
    }
  }
  inner.Bool("drafts", &request->drafts);
  inner.Integer("max_drafts", 0, kMaxDrafts, &request->max_drafts);
  if (inner.Find("codec") != nullptr) inner.String("codec", kMaxNameBytes, &request->codec.emplace());
  if (request->drafts && !request->stream) inner.Fail("drafts", "needs \"stream\": true");
}

}  // namespace

Result<ApiRequest> ParseApiRequest(ApiKind kind, std::string_view body, int context, std::string* param) {
  param->clear();
  LYNX_RETURN_IF_ERROR(CheckShape(body, MaxJsonValues(context)));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Invalid("the body is not valid JSON in UTF-8");
  if (!json.is_object()) return Invalid("the body must be a JSON object");
  ApiRequest request;
  request.kind = kind;
  Status status;
  Fields fields(json, "", param, &status);
  fields.String("model", kMaxNameBytes, &request.model);
  kind == ApiKind::kChat ? ReadMessages(&fields, &request.prompt) : ReadPrompt(&fields, &request.prompt);
  ReadMaxTokens(&fields, &request);
  ReadSampling(&fields, &request);
  ReadStop(&fields, &request.stop);
  ReadStreaming(&fields, &request);
  RefuseUnserved(&fields);
  ReadLynx(&fields, &request);
  LYNX_RETURN_IF_ERROR(status);
  return request;
}

}  // namespace lynx
