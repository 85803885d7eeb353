// What a client asks for: the JSON bodies of /v1/completions and /v1/chat/completions, as OpenAI's API has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lynx/engine.h"
#include "lynx/result.h"
#include "lynx/sampling.h"

namespace lynx {

enum class ApiKind { kCompletion, kChat };

inline constexpr int kMaxJsonDepth = 16;
// Of a body, for a context of so many tokens: its token ids or its messages, and some more. Each is 16 bytes of memory.
constexpr std::size_t MaxJsonValues(int context) { return 4096 + 16 * std::size_t(context); }

using ApiPrompt = std::variant<std::string, std::vector<Token>, std::vector<ChatMessage>>;

// Absent fields have OpenAI's defaults.
struct ApiRequest {
  ApiKind kind = ApiKind::kCompletion;
  std::string model;              // empty: not given
  ApiPrompt prompt;               // not empty
  std::optional<int> max_tokens;  // at least 1
  SamplingOptions sampling{.temperature = 1.0f};
  bool has_seed = false;
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;  // at the end of the stream
  // "lynx": {…}
  bool drafts = false;               // show drafts, commits and rollbacks in the stream
  std::optional<std::string> codec;  // a spec that was not checked
  std::optional<int> max_drafts;
};

// `context`: tokens of the engine's, see MaxJsonValues. kInvalid with a message for the client; *param is the field
// that is wrong, empty when it is the whole body. Fields that would change the answer and can't be served are refused;
// fields that nobody knows are ignored.
Result<ApiRequest> ParseApiRequest(ApiKind kind, std::string_view body, int context, std::string* param);

}  // namespace lynx
