// The API over real sockets: toy nodes where answers matter, scripts where moments do.
#include "front/front.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "front/http_client_test.h"
#include "net/net_node.h"
#include "serve/node_layout.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kChat = R"({"messages": [{"role": "user", "content": "HELLO THERE"}], )";

GenerateResult SomeResult(const std::string& text) {
  GenerateResult result;
  result.codec = "raw";
  result.tokens.assign(text.size(), 1);
  result.commit_s.assign(text.size(), 0.5);
  result.text = text;
  result.reason = FinishReason::kEndOfText;
  return result;
}

// Shows nothing until it is stopped.
Result<GenerateResult> UntilCancelled(const GenerateRequest&, GenerateObserver*, const std::atomic<bool>* cancel) {
  while (!*cancel) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return GenerateResult{};
}

class Scripted {
 public:
  explicit Scripted(ScriptedAnswerer::Script script, FrontOptions options = {}) : answerer(std::move(script)) {
    options.listen = "127.0.0.1:0";
    auto started = Front::Start(&answerer, std::move(options));
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    front = std::move(started).value();
  }
  TestResponse Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return PostOnce(front->address(), path, body, headers);
  }
  TestResponse Get(const std::string& path, const std::string& headers = "") {
    TestClient client(front->address());
    client.Get(path, headers);
    return client.Read();
  }
  // The request at the answerer has ended.
  void ExpectReleased() {
    for (int i = 0; i < 2000 && answerer.under_way > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(answerer.under_way, 0);
  }
  void AwaitUnderWay(int count) {
    while (answerer.under_way < count) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  ScriptedAnswerer answerer;
  std::unique_ptr<Front> front;
};

ScriptedAnswerer::Script Says(const std::string& text) {
  return [text](const GenerateRequest&, GenerateObserver*, const std::atomic<bool>*) { return SomeResult(text); };
}
ScriptedAnswerer::Script Fails(const Status& status) {
  return [status](const GenerateRequest&, GenerateObserver*, const std::atomic<bool>*) { return status; };
}

TEST(Front, AnswersInOpenAisShape) {
  const Watchdog watchdog(60);
  Scripted node(Says("HI"));
  const TestResponse chat = node.Post("/v1/chat/completions", kChat + R"("model": "toy"})");
  ASSERT_EQ(chat.status, 200) << chat.body;
  EXPECT_THAT(chat.head, HasSubstr("Content-Type: application/json"));
  const json answer = chat.json();
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "HI");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 11);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
  EXPECT_EQ(answer["usage"]["total_tokens"], 13);
  EXPECT_EQ(answer["usage"]["lynx"]["codec"], "raw");
  EXPECT_EQ(answer["usage"]["lynx"]["tt1t_s"], 0.5);
  const json completion = node.Post("/v1/completions", R"({"prompt": "AB"})").json();
  EXPECT_EQ(completion["object"], "text_completion");
  EXPECT_EQ(completion["choices"][0]["text"], "HI");
  EXPECT_EQ(node.Get("/v1/models").json()["data"][0]["id"], "toy");
  EXPECT_EQ(node.Get("/health").json()["status"], "ok");
  EXPECT_THAT(node.Get("/").body, HasSubstr("<!doctype html>"));
}

TEST(Front, PassesTheRequestOn) {
  const Watchdog watchdog(60);
  GenerateRequest seen;
  Scripted node([&seen](const GenerateRequest& request, GenerateObserver*, const std::atomic<bool>*) {
    seen = request;
    return SomeResult("X");
  });
  node.Post("/v1/completions", R"({"prompt": [5, 6], "max_tokens": 9, "temperature": 0, "seed": 4, "stop": "Q"})");
  EXPECT_EQ(seen.prompt, (std::vector<Token>{5, 6}));
  EXPECT_EQ(seen.max_new_tokens, 9);
  EXPECT_EQ(seen.sampling.temperature, 0);
  EXPECT_EQ(seen.sampling.seed, 4u);
  EXPECT_EQ(seen.stop, std::vector<std::string>{"Q"});
  EXPECT_EQ(seen.codec, "lynx");
  EXPECT_EQ(seen.max_drafts, 64);
  node.Post("/v1/completions", R"({"prompt": [5, 6], "lynx": {"codec": "int8", "max_drafts": 3}})");
  EXPECT_EQ(seen.codec, "int8");
  EXPECT_EQ(seen.max_drafts, 3);
  const auto seed = seen.sampling.seed;
  node.Post("/v1/chat/completions", kChat + "\"user\": \"me\"}");
  EXPECT_EQ(seen.max_new_tokens, 512 - 11 + 1);  // the rest of the context
  EXPECT_NE(seen.sampling.seed, seed);
}

TEST(Front, SaysWhatIsWrongWithTheRightStatus) {
  const Watchdog watchdog(60);
  Scripted node(Says("HI"));
  const auto expect = [](const TestResponse& response, int status, const char* words, const std::string& code = "") {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_THAT(response.error(), HasSubstr(words));
    EXPECT_EQ(response.error("code"), code);
  };
  expect(node.Get("/v1/other"), 404, "nothing", "not_found");
  expect(node.Get("/v1/completions"), 405, "POST");
  expect(node.Post("/health", "{}"), 405, "GET");
  expect(node.Post("/v1/completions", "{"), 400, "JSON");
  const TestResponse wrong = node.Post("/v1/completions", R"({"prompt": "A", "temperature": -1})");
  expect(wrong, 400, "temperature");
  EXPECT_EQ(wrong.error("param"), "temperature");
  EXPECT_EQ(wrong.error("type"), "invalid_request_error");
  expect(node.Post("/v1/completions", R"({"prompt": "A", "model": "gpt"})"), 404, "toy", "model_not_found");
  expect(node.Post("/v1/completions", "{\"prompt\": \"" + std::string(512, 'A') + "\"}"), 400, "512 tokens",
         "context_length_exceeded");
  // Not given to a tokenizer, which would take long.
  expect(node.Post("/v1/completions", "{\"prompt\": \"" + std::string(65 * 512, 'A') + "\"}"), 400, "33280 bytes",
         "context_length_exceeded");
  expect(node.Post("/v1/completions", R"({"prompt": [96]})"), 400, "vocabulary");
  expect(node.Post("/v1/completions", R"({"prompt": "A"})", "Origin: http://elsewhere\r\n"), 403, "web pages");
  EXPECT_EQ(node.Post("/v1/completions", R"({"prompt": "A"})", "Origin: http://localhost\r\n").status, 200);
  // A name that its owner points to this machine.
  TestClient client(node.front->address());
  client.Send("GET /health HTTP/1.1\r\nHost: evil.example:80\r\nOrigin: http://evil.example:80\r\n\r\n");
  expect(client.Read(), 403, "web pages");
}

TEST(Front, SaysWhatFailedWithTheRightStatus) {
  const Watchdog watchdog(60);
  const std::vector<std::pair<Status, int>> table = {{Invalid("bad codec"), 400},  {Unsupported("no codec"), 400},
                                                     {LimitExceeded("busy"), 503}, {IoError("no prefill"), 503},
                                                     {Corrupt("bad page"), 500},   {EngineError("broke"), 500}};
  for (const auto& [status, code] : table) {
    Scripted node(Fails(status));
    for (const char* stream : {"false", "true"}) {
      const TestResponse response =
          node.Post("/v1/completions", R"({"prompt": "A", "stream": )" + std::string(stream) + "}");
      EXPECT_EQ(response.status, code);
      EXPECT_EQ(response.error(), status.message());
      EXPECT_EQ(response.head.find("Retry-After: 1") != std::string::npos, code == 503);
    }
  }
}

TEST(Front, NeedsAKeyWhereThereAreKeys) {
  const Watchdog watchdog(60);
  FrontOptions options;
  options.keys = ApiKeys::Parse("2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b").value();
  Scripted node(Says("HI"), options);
  const std::string body = R"({"prompt": "A"})";
  const TestResponse refused = node.Post("/v1/completions", body, "Authorization: Bearer wrong\r\n");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.error("code"), "invalid_api_key");
  EXPECT_THAT(refused.body + refused.head, Not(HasSubstr("wrong")));
  EXPECT_EQ(node.Post("/v1/completions", body).status, 401);
  EXPECT_EQ(node.Get("/v1/models").status, 401);
  EXPECT_EQ(node.Get("/metrics").status, 401);
  EXPECT_EQ(node.Get("/health").status, 200);
  EXPECT_EQ(node.Get("/").status, 200);
  EXPECT_EQ(node.Post("/v1/completions", body, "Authorization: Bearer secret\r\n").status, 200);
}

TEST(Front, OpenToOthersOnlyWithKeysOrOnPurpose) {
  ScriptedAnswerer answerer(Says("HI"));
  FrontOptions options;
  for (const char* listen : {"0.0.0.0:0", ":0", "[::]:0", "127.0.0.1.example.com:0"}) {
    options.listen = listen;
    const auto front = Front::Start(&answerer, options);
    ASSERT_FALSE(front.ok()) << listen;
    EXPECT_THAT(front.status().message(), HasSubstr("--no-auth"));
  }
  options.listen = "0.0.0.0:0";
  options.open = true;
  EXPECT_TRUE(Front::Start(&answerer, options).ok());
}

// Text, one byte of a token at a time, then the end.
Result<GenerateResult> SaysSlowly(const GenerateRequest&, GenerateObserver* observer, const std::atomic<bool>*) {
  std::vector<Token> tokens;
  for (int i = 0; i < 5; ++i) {
    observer->OnText("A");
    tokens.push_back('A' - ' ');
    observer->OnTokens(tokens, i + 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  observer->OnText("B");  // what was held back
  GenerateResult result = SomeResult("AAAAAB");
  result.reason = FinishReason::kMaxTokens;
  return result;
}

TEST(Front, StreamsInOpenAisShape) {
  const Watchdog watchdog(60);
  Scripted node(SaysSlowly);
  const TestResponse response =
      node.Post("/v1/chat/completions", kChat + R"("stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.complete);
  EXPECT_THAT(response.head, HasSubstr("Content-Type: text/event-stream"));
  auto events = Events(response.body);
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events.back().second, "[DONE]");
  events.pop_back();
  const json first = json::parse(events.front().second);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  const json usage = json::parse(events.back().second);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 6);
  events.pop_back();
  const json last = json::parse(events.back().second);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  events.pop_back();
  std::string text;
  for (const auto& [name, data] : events) {
    const json chunk = json::parse(data);
    EXPECT_TRUE(name.empty());
    EXPECT_EQ(chunk["id"], first["id"]);
    EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
    text += chunk["choices"][0]["delta"]["content"].get<std::string>();
  }
  EXPECT_EQ(text, "AAAAAB");
}

TEST(Front, AStreamThatFailsSaysSo) {
  const Watchdog watchdog(60);
  Scripted node([](const GenerateRequest&, GenerateObserver* observer, const std::atomic<bool>*) {
    observer->OnTokens({1}, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return Result<GenerateResult>(IoError("the prefill node died"));
  });
  const TestResponse response = node.Post("/v1/completions", R"({"prompt": "A", "stream": true})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(json::parse(Events(response.body).back().second)["error"]["message"], "the prefill node died");
  EXPECT_THAT(node.Get("/metrics").body, HasSubstr("lynx_requests_total{outcome=\"failed\"} 1"));
}

TEST(Front, AClientThatLeavesEndsItsRequest) {
  const Watchdog watchdog(60);
  for (const bool shows : {false, true}) {
    for (const char* stream : {"false", "true"}) {
      Scripted node(
          [shows](const GenerateRequest& request, GenerateObserver* observer, const std::atomic<bool>* cancel) {
            if (shows) observer->OnTokens({1}, 1);
            return UntilCancelled(request, observer, cancel);
          });
      TestClient client(node.front->address());
      client.Post("/v1/completions", R"({"prompt": "A", "stream": )" + std::string(stream) + "}");
      node.AwaitUnderWay(1);
      if (shows && stream == std::string("true")) client.ReadUntil("200 OK");
      client.Leave();
      node.ExpectReleased();
      while (node.Get("/metrics").body.find("lynx_requests_open 0") == std::string::npos) {
      }
      EXPECT_THAT(node.Get("/metrics").body, HasSubstr("lynx_requests_total{outcome=\"left\"} 1"));
    }
  }
}

TEST(Front, DrainsWithALimit) {
  const Watchdog watchdog(60);
  std::atomic<bool> go_on = false;
  Scripted node([&go_on](const GenerateRequest& request, GenerateObserver* observer, const std::atomic<bool>* cancel) {
    if (request.prompt.size() == 2) return UntilCancelled(request, observer, cancel);
    while (!go_on && !*cancel) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Result<GenerateResult>(SomeResult("DONE"));
  });
  TestClient short_one(node.front->address()), long_one(node.front->address()), idle(node.front->address());
  idle.Get("/health");
  EXPECT_EQ(idle.Read().status, 200);
  short_one.Post("/v1/completions", R"({"prompt": "A"})");
  long_one.Post("/v1/completions", R"({"prompt": "AB"})");
  node.AwaitUnderWay(2);
  auto drained = std::async(std::launch::async, [&node] { node.front->Drain(kSecondNs); });
  while (true) {  // until the drain has begun
    idle.Get("/health");
    if (idle.Read().status == 503) break;
  }
  idle.Post("/v1/completions", R"({"prompt": "A"})");
  EXPECT_EQ(idle.Read().status, 503);
  go_on = true;
  EXPECT_EQ(short_one.Read().status, 200);
  const TestResponse ended = long_one.Read();
  EXPECT_EQ(ended.status, 503);
  EXPECT_THAT(ended.error(), HasSubstr("stopping"));
  drained.get();
  EXPECT_EQ(node.answerer.under_way, 0);
  EXPECT_TRUE(idle.Ended());
}

TEST(Front, CountsWhatHappens) {
  const Watchdog watchdog(60);
  Scripted node([](const GenerateRequest&, GenerateObserver*, const std::atomic<bool>*) {
    GenerateResult result = SomeResult("ABC");
    result.drafted = 5;
    result.accepted = 2;
    result.kept_tokens = 1;
    result.stream_bytes = {100, 200};
    result.ttft_s = 0.02;
    result.stream_done_s = {0.3, 0.7};
    return result;
  });
  node.Post("/v1/completions", R"({"prompt": "AB"})");
  const json usage = node.Post("/v1/completions", R"({"prompt": "AB"})").json()["usage"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 1);
  EXPECT_EQ(usage["lynx"]["kept_tokens"], 1);
  node.Post("/v1/completions", "{}");
  const std::string text = node.Get("/metrics").body;
  for (const char* line :
       {"lynx_requests_total{outcome=\"done\"} 2\n", "lynx_requests_total{outcome=\"refused\"} 1\n",
        "lynx_requests_open 0\n", "lynx_prefill_ready 1\n", "lynx_steps_total 7\n", "lynx_prompt_tokens_total 4\n",
        "lynx_kept_tokens_total 2\n", "lynx_kept_bytes 9\n", "lynx_committed_tokens_total 6\n",
        "lynx_drafted_tokens_total 10\n", "lynx_accepted_tokens_total 4\n",
        "lynx_stream_bytes_total{stream=\"1\"} 400\n", "lynx_ttft_seconds_bucket{le=\"0.01\"} 0\n",
        "lynx_ttft_seconds_bucket{le=\"0.025\"} 2\n", "lynx_ttft_seconds_bucket{le=\"+Inf\"} 2\n",
        "lynx_ttft_seconds_count 2\n", "lynx_anchor_seconds_sum 0.6\n", "lynx_residual_seconds_sum 1.4\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// --- with nodes ---

class NodeAnswerer final : public Answerer {
 public:
  explicit NodeAnswerer(const std::string& address) : client_(address) {}
  const Engine& engine() const override { return *client_.engine(); }
  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel) override {
    return client_.Generate(request, observer, cancel);
  }
  bool ready() const override { return client_.connected().ok(); }
  EngineLoopStats stats() const override { return {}; }

 private:
  mutable DecodeClient client_;
};

TEST(Front, AnswersAreThoseOfTheNodes) {
  const Watchdog watchdog(120);
  PrefillServer prefill;
  NodeAnswerer answerer(prefill.address());
  FrontOptions options;
  options.listen = "127.0.0.1:0";
  options.codec = "nested";
  const auto front = Front::Start(&answerer, options).value();
  // Several at once, every way to ask.
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::async(std::launch::async, [&, i] {
      const std::string prompt = "THE " + std::to_string(i) + " PROMPT OF MANY WORDS";
      GenerateRequest request = RequestFor(answerer.engine().Tokenize(prompt, true).value());
      std::string expected;
      for (const Token token : Expected(request)) expected += answerer.engine().TokenText(token);
      const std::string body = R"({"prompt": ")" + prompt + R"(", "max_tokens": 40, "temperature": 0, "stream": )";
      const json whole = PostOnce(front->address(), "/v1/completions", body + "false}").json();
      EXPECT_EQ(whole["choices"][0]["text"], expected);
      EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
      EXPECT_EQ(whole["usage"]["lynx"]["bytes"].size(), 2u);
      for (const char* lynx : {R"({})", R"({"drafts": true})"}) {
        std::string text, committed;
        const auto response = PostOnce(front->address(), "/v1/completions", body + "true, \"lynx\": " + lynx + "}");
        for (const auto& [name, data] : Events(response.body)) {
          if (data == "[DONE]") continue;
          const json chunk = json::parse(data);
          if (name.empty()) text += chunk["choices"][0]["text"].get<std::string>();
          if (name == "commit") committed += chunk["lynx"]["text"].get<std::string>();
        }
        EXPECT_EQ(text, expected);
        EXPECT_EQ(committed, std::string(lynx) == "{}" ? "" : expected);
      }
    }));
  }
  for (auto& client : clients) client.get();
}

TEST(Front, ABusyPrefillNodeIsNotTheClientsFault) {
  const Watchdog watchdog(60);
  NetOptions busy;
  busy.listen = "127.0.0.1:0";
  busy.node.role = NodeRole::kPrefill;
  busy.node.layout = LayoutOf(MakeToy(LongToy())->info());
  busy.node.codecs = CodecNames();
  busy.node.max_open_requests = 0;
  const auto prefill = NetNode::Start(busy, [](TransferNode&, TransferEvent, TimeNs) {}).value();
  NodeAnswerer answerer(prefill->listen_address());
  FrontOptions options;
  options.listen = "127.0.0.1:0";
  const auto front = Front::Start(&answerer, options).value();
  for (const char* stream : {"false", "true"}) {
    const TestResponse response =
        PostOnce(front->address(), "/v1/completions", R"({"prompt": "A", "stream": )" + std::string(stream) + "}");
    EXPECT_EQ(response.status, 503);
    EXPECT_THAT(response.error(), HasSubstr("busy"));
    EXPECT_THAT(response.head, HasSubstr("Retry-After: 1"));
  }
}

}  // namespace
}  // namespace lynx
