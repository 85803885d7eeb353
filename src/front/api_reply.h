// What clients are told, in the JSON of OpenAI's API.
#pragma once

#include <string>
#include <string_view>

#include "front/api_request.h"
#include "front/http_server.h"
#include "serve/decode_node.h"

namespace lynx {

// What all JSON of one answer has in common.
struct ReplyHead {
  ApiKind kind = ApiKind::kCompletion;
  std::string id;
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
  int prompt_tokens = 0;
};

// The whole answer in one piece.
std::string AnswerJson(const ReplyHead& head, const GenerateResult& result);

// Pieces of a stream, as server-sent events. The JSON of all but StreamDone has the shape of an OpenAI chunk.
std::string RoleChunk(const ReplyHead& head);  // a chat begins with it
std::string TextChunk(const ReplyHead& head, std::string_view text);
std::string FinishChunk(const ReplyHead& head, FinishReason reason);
// `timeline`: with what happened when.
std::string UsageChunk(const ReplyHead& head, const GenerateResult& result, bool timeline);
// Tokens [position, position + count) are drafts now, are committed now, or (all from `position` on, count is how many)
// have been taken back. `text` is theirs; committed text is what TextChunk shows too. Has no choices, so that clients
// that don't know it pass over it.
enum class DraftEvent { kDraft, kCommit, kRollback };
std::string DraftChunk(const ReplyHead& head, DraftEvent event, std::size_t position, std::size_t count,
                       std::string_view text);
std::string ErrorEvent(int status, std::string_view message);
std::string StreamDone();

// The HTTP status for a request that failed with this code in a node.
int HttpStatusOf(ErrorCode code);
// `param` and `code` may be empty.
HttpResponse ErrorResponse(int status, std::string_view message, std::string_view param = {},
                           std::string_view code = {});
HttpResponse ModelsResponse(const std::string& model, std::int64_t created);

}  // namespace lynx
