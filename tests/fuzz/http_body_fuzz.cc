// What a client of the HTTP front sends: a body is a request that can be served or an error that can be told.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "front/api_keys.h"
#include "front/api_reply.h"
#include "front/api_request.h"
#include "lynx/speculate.h"
#include "speculate/stop.h"

namespace lynx {
namespace {

void CheckRequest(const ApiRequest& request) {
  LYNX_CHECK(CheckSampling(request.sampling).ok());
  LYNX_CHECK(CheckStops(request.stop).ok());
  LYNX_CHECK(request.max_tokens.value_or(1) >= 1);
  LYNX_CHECK(request.max_drafts.value_or(0) >= 0);
  if (const auto* text = std::get_if<std::string>(&request.prompt)) LYNX_CHECK(!text->empty());
  if (const auto* tokens = std::get_if<std::vector<Token>>(&request.prompt)) {
    LYNX_CHECK(!tokens->empty());
    for (const Token token : *tokens) LYNX_CHECK(token >= 0);
  }
  if (const auto* messages = std::get_if<std::vector<ChatMessage>>(&request.prompt)) {
    LYNX_CHECK(!messages->empty());
    for (const ChatMessage& message : *messages) LYNX_CHECK(!message.role.empty());
  }
}

void CheckBody(ApiKind kind, std::string_view body) {
  std::string param;
  const Result<ApiRequest> request = ParseApiRequest(kind, body, 1 << 16, &param);
  if (request.ok()) return CheckRequest(*request);
  LYNX_CHECK(request.status().code() == ErrorCode::kInvalid && !request.status().message().empty());
  const HttpResponse response = ErrorResponse(400, request.status().message(), param);
  LYNX_CHECK(response.body.starts_with("{\"error\":{") && response.body.ends_with("}\n"));
}

}  // namespace
}  // namespace lynx

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lynx;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  CheckBody(ApiKind::kCompletion, body);
  CheckBody(ApiKind::kChat, body);
  const auto keys = ApiKeys::Parse(body);
  if (keys.ok()) LYNX_CHECK(!keys->Accept(body));
  return 0;
}
