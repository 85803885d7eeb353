#include "front/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lynx {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kContext = 4096;

ApiRequest Good(ApiKind kind, const std::string& body) {
  std::string param;
  const auto request = ParseApiRequest(kind, body, kContext, &param);
  EXPECT_TRUE(request.ok()) << body << ": " << request.status().ToString();
  EXPECT_EQ(param, "");
  return request.ok() ? *request : ApiRequest{};
}

TEST(ApiRequest, HasOpenAisDefaults) {
  const ApiRequest request = Good(ApiKind::kCompletion, R"({"prompt": "Hello"})");
  EXPECT_EQ(std::get<std::string>(request.prompt), "Hello");
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_FALSE(request.has_seed || request.stream || request.include_usage || request.drafts);
  EXPECT_EQ(request.codec, std::nullopt);
  EXPECT_EQ(Good(ApiKind::kChat, R"({"messages": [{"role": "user", "content": "x"}]})").max_tokens, std::nullopt);
}

TEST(ApiRequest, ReadsEveryField) {
  const ApiRequest request = Good(ApiKind::kChat, R"({"model": "toy", "messages": [
      {"role": "developer", "content": "short"}, {"role": "user", "content": [{"type": "text", "text": "a"},
      {"type": "text", "text": "b"}]}, {"role": "assistant", "content": "c", "name": "x"}],
      "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1,
      "seed": 18446744073709551615, "stop": ["x", "y"], "stream": true, "stream_options": {"include_usage": true},
      "n": 1, "logprobs": false, "tools": null, "user": "me", "frequency_penalty": 0.0, "something_new": {"a": 1},
      "lynx": {"drafts": true, "codec": "int8", "max_drafts": 0}})");
  const auto& messages = std::get<std::vector<ChatMessage>>(request.prompt);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "ab");
  EXPECT_EQ(messages[2].role, "assistant");
  EXPECT_EQ(request.model, "toy");
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.sampling.seed, 18446744073709551615u);
  EXPECT_THAT(request.stop, ElementsAre("x", "y"));
  EXPECT_TRUE(request.stream && request.include_usage && request.drafts);
  EXPECT_EQ(request.codec, "int8");
  EXPECT_EQ(request.max_drafts, 0);
}

TEST(ApiRequest, TakesPromptsInEveryShape) {
  EXPECT_EQ(std::get<std::string>(Good(ApiKind::kCompletion, R"({"prompt": ["one"]})").prompt), "one");
  for (const char* body : {R"({"prompt": [1, 2, 3]})", R"({"prompt": [[1, 2, 3]]})"}) {
    EXPECT_THAT(std::get<std::vector<Token>>(Good(ApiKind::kCompletion, body).prompt), ElementsAre(1, 2, 3));
  }
  EXPECT_THAT(std::get<std::vector<Token>>(Good(ApiKind::kCompletion, R"({"prompt": [7]})").prompt), ElementsAre(7));
}

struct BadBody {
  std::string body;
  std::string param;
  std::string words;
};

void ExpectRefused(ApiKind kind, const std::vector<BadBody>& table) {
  for (const BadBody& bad : table) {
    std::string param = "unset";
    const auto request = ParseApiRequest(kind, bad.body, kContext, &param);
    ASSERT_FALSE(request.ok()) << bad.body;
    EXPECT_EQ(request.status().code(), ErrorCode::kInvalid) << bad.body;
    EXPECT_THAT(request.status().message(), HasSubstr(bad.words)) << bad.body;
    EXPECT_EQ(param, bad.param) << bad.body;
  }
}

TEST(ApiRequest, RefusesWrongCompletions) {
  const std::string prompt = R"({"prompt": "x", )";
  ExpectRefused(ApiKind::kCompletion,
                {{"", "", "not valid JSON"},
                 {"{", "", "not valid JSON"},
                 {"{\"prompt\": \"\xff\"}", "", "UTF-8"},
                 {"{\"prompt\": \"\xc3\"}", "", "UTF-8"},
                 {R"({"prompt": "x"} x)", "", "not valid JSON"},
                 {R"({"prompt": "x", "seed": 1e999})", "", "not valid JSON"},
                 {"[]", "", "must be a JSON object"},
                 {"{}", "prompt", "is missing"},
                 {R"({"prompt": null})", "prompt", "is missing"},
                 {R"({"prompt": ""})", "prompt", "not empty"},
                 {R"({"prompt": []})", "prompt", "not empty"},
                 {R"({"prompt": ["a", "b"]})", "prompt", "one text"},
                 {R"({"prompt": [1.5]})", "prompt", "token ids"},
                 {R"({"prompt": [-1]})", "prompt", "out of range"},
                 {R"({"prompt": [2147483648]})", "prompt", "out of range"},
                 {R"({"prompt": {"a": 1}})", "prompt", "one text"},
                 {prompt + R"("model": 7})", "model", "must be a string"},
                 {prompt + R"("model": ")" + std::string(257, 'm') + "\"}", "model", "longer than 256"},
                 {prompt + R"("max_tokens": 0})", "max_tokens", "from 1"},
                 {prompt + R"("max_tokens": "5"})", "max_tokens", "whole number"},
                 {prompt + R"("max_tokens": 18446744073709551615})", "max_tokens", "from 1"},
                 {prompt + R"("temperature": -1})", "temperature", "from 0"},
                 {prompt + R"("temperature": "hot"})", "temperature", "must be a number"},
                 {prompt + R"("top_p": 2})", "top_p", "from 0 to 1"},
                 {prompt + R"("top_p": 0})", "top_p", "can't be used"},
                 {prompt + R"("top_k": 18446744073709551615})", "top_k", "from -1"},
                 {prompt + R"("seed": 1.5})", "seed", "whole number"},
                 {prompt + R"("stop": [1]})", "stop", "list of strings"},
                 {prompt + R"("stop": ""})", "stop", "can't be used"},
                 {prompt + R"("stream": 1})", "stream", "true or false"},
                 {prompt + R"("stream_options": {}})", "stream_options", "needs"},
                 {prompt + R"("n": 2})", "n", "not supported"},
                 {prompt + R"("echo": true})", "echo", "not supported"},
                 {prompt + R"("logprobs": 3})", "logprobs", "not supported"},
                 {prompt + R"("suffix": "x"})", "suffix", "not supported"},
                 {prompt + R"("logit_bias": {"1": 2}})", "logit_bias", "not supported"},
                 {prompt + R"("lynx": 3})", "lynx", "must be an object"},
                 {prompt + R"("lynx": {"draft": true}})", "lynx.draft", "not known"},
                 {prompt + R"("lynx": {"drafts": true}})", "lynx.drafts", "needs"},
                 {prompt + R"("lynx": {"max_drafts": -1}})", "lynx.max_drafts", "from 0"},
                 {prompt + R"("lynx": {"codec": 8}})", "lynx.codec", "must be a string"}});
}

TEST(ApiRequest, RefusesWrongChats) {
  const std::string messages = R"({"messages": [{"role": "user", "content": "x"}], )";
  ExpectRefused(ApiKind::kChat,
                {{"{}", "messages", "is missing"},
                 {R"({"messages": []})", "messages", "at least one"},
                 {R"({"messages": "x"})", "messages", "list"},
                 {R"({"messages": ["x"]})", "messages", "role"},
                 {R"({"messages": [{"content": "x"}]})", "messages", "role"},
                 {R"({"messages": [{"role": "tool", "content": "x"}]})", "messages", "role"},
                 {R"({"messages": [{"role": "user"}]})", "messages", "content"},
                 {R"({"messages": [{"role": "user", "content": 1}]})", "messages", "content"},
                 {R"({"messages": [{"role": "user", "content": "a\u0000b"}]})", "messages", "NUL"},
                 {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages", "content"},
                 {messages + R"("tools": [{}]})", "tools", "not supported"},
                 {messages + R"("tool_choice": "required"})", "tool_choice", "not supported"},
                 {messages + R"("response_format": {"type": "json_object"}})", "response_format", "not supported"},
                 {messages + R"("stream": true, "stream_options": {"include_usage": 1}})",
                  "stream_options.include_usage", "true or false"}});
}

TEST(ApiRequest, BelievesNeitherDepthNorWidth) {
  std::string param;
  const std::string deep = R"({"prompt": )" + std::string(1 << 20, '[');
  EXPECT_THAT(ParseApiRequest(ApiKind::kCompletion, deep, kContext, &param).status().message(),
              HasSubstr("too deeply"));
  std::string wide = R"({"prompt": [0)";
  for (std::size_t i = 0; i <= MaxJsonValues(kContext); ++i) wide += ",0";
  EXPECT_THAT(ParseApiRequest(ApiKind::kCompletion, wide + "]}", kContext, &param).status().message(),
              HasSubstr("too many"));
  // Brackets and quotes in strings are only text.
  const std::string text = R"({"prompt": "\"[[[[[[[[[[[[[[[[[[[[\\"})";
  EXPECT_EQ(std::get<std::string>(Good(ApiKind::kCompletion, text).prompt), "\"[[[[[[[[[[[[[[[[[[[[\\");
}

}  // namespace
}  // namespace lynx
