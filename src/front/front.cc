#include "front/front.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>

#include "base/status_macros.h"
#include "front/answer_run.h"
#include "front/answer_stream.h"
#include "front/api_reply.h"
#include "front/api_request.h"
#include "front/metrics.h"
#include "front/web_page.h"
#include "net/socket.h"

namespace lynx {
namespace {

// How often is looked whether the client has left.
constexpr TimeNs kLookNs = 50 * kMillisecondNs;
// What ended requests get to say so before their connections end.
constexpr TimeNs kGoodbyeNs = 2 * kSecondNs;
// The status of a response that nobody reads.
constexpr int kClientLeft = 499;

std::int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Special tokens have no text here: 64 bytes are more than those have.
std::size_t LongestToken(const Engine& engine) {
  std::size_t longest = 64;
  for (Token token = 0; token < engine.info().vocab_size; ++token) {
    longest = std::max(longest, engine.TokenText(token).size());
  }
  return longest;
}

// "localhost:8080" -> "localhost", "[::1]:8080" -> "::1".
std::string WithoutPort(const std::string& host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// Browsers let pages from anywhere send requests to a node that only listens to its own machine, also under a name that
// its owner points to 127.0.0.1. They say where the page is from.
bool IsForeignPage(const HttpRequest& http, bool only_this_machine) {
  const std::string origin = http.Header("Origin");
  const std::string host = http.Header("Host");
  if (origin.empty()) return false;
  if (origin != "http://" + host && origin != "https://" + host) return true;
  return only_this_machine && !IsLoopback(WithoutPort(host));
}

}  // namespace

class Front::Impl {
 public:
  Impl(Answerer* answerer, FrontOptions options)
      : answerer_(answerer),
        options_(std::move(options)),
        started_(UnixTime()),
        longest_token_(LongestToken(answerer->engine())),
        next_id_(RandomNumber()) {}
  ~Impl() { Drain(0); }

  Status Start() {
    LYNX_RETURN_IF_ERROR(CheckFront(options_));
    HttpHandlers handlers;
    handlers.answer = [this](HttpRequest& http) { return Answer(http); };
    handlers.refuse = [](int status) { return Refusal(status); };
    LYNX_ASSIGN_OR_RETURN(server_, HttpServer::Start(options_.listen, options_.limits, std::move(handlers)));
    return Ok();
  }

  const std::string& address() const { return server_->address(); }

  void Drain(TimeNs timeout) {
    if (!server_) return;
    draining_ = true;
    server_->StopListening();
    std::unique_lock lock(mutex_);
    closed_.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return open_ == 0; });
    stopping_ = true;
    closed_.wait_for(lock, std::chrono::nanoseconds(kGoodbyeNs), [this] { return open_ == 0; });
    lock.unlock();
    server_->Stop();
  }

 private:
  // --- routes ---

  struct Route {
    std::string_view path;
    std::string_view method;
    bool needs_key;
    HttpResponse (Impl::*answer)(HttpRequest&);
  };
  static constexpr int kRoutes = 6;
  static const std::array<Route, kRoutes>& Routes() {
    static constexpr std::array<Route, kRoutes> routes = {{
        {"/v1/chat/completions", "POST", true, &Impl::Chat},
        {"/v1/completions", "POST", true, &Impl::Completion},
        {"/v1/models", "GET", true, &Impl::Models},
        {"/metrics", "GET", true, &Impl::MetricsText},
        {"/health", "GET", false, &Impl::Health},
        {"/", "GET", false, &Impl::PageForPeople},
    }};
    return routes;
  }

  HttpResponse Answer(HttpRequest& http) {
    const auto route = std::find_if(Routes().begin(), Routes().end(),
                                    [&http](const Route& candidate) { return candidate.path == http.path(); });
    if (route == Routes().end()) return ErrorResponse(404, "there is nothing at this path", {}, "not_found");
    const bool head = http.method() == "HEAD" && route->method == "GET";
    if (http.method() != route->method && !head) {
      HttpResponse response = ErrorResponse(405, "this path takes " + std::string(route->method) + " only");
      response.headers.emplace_back("Allow", route->method);
      return response;
    }
    if (IsForeignPage(http, !options_.keys && !options_.open))
      return ErrorResponse(403, "requests of web pages from elsewhere are refused");
    if (route->needs_key && options_.keys && !options_.keys->Accept(http.Header("Authorization"))) {
      return ErrorResponse(401, "give a valid key: Authorization: Bearer KEY", {}, "invalid_api_key");
    }
    return (this->*route->answer)(http);
  }

  static HttpResponse Refusal(int status) {
    switch (status) {
      case 413:
        return ErrorResponse(status, "the request's body is too long");
      case 500:
        return ErrorResponse(status, "the server failed");
      case 503:
        return ErrorResponse(status, "too many connections: try later");
      default:
        return ErrorResponse(status, "this is not a request that the server understands");
    }
  }

  HttpResponse Models(HttpRequest&) { return ModelsResponse(model(), started_); }

  HttpResponse MetricsText(HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_.Text(answerer_->stats(), open(), answerer_->ready());
    return response;
  }

  HttpResponse Health(HttpRequest&) {
    if (draining_) return ErrorResponse(503, "the node is stopping");
    if (!answerer_->ready()) return ErrorResponse(503, "no prefill node is there");
    HttpResponse response;
    response.body = "{\"status\":\"ok\"}\n";
    return response;
  }

  HttpResponse PageForPeople(HttpRequest&) {
    HttpResponse response;
    response.content_type = "text/html; charset=utf-8";
    response.body = Page();
    return response;
  }

  HttpResponse Chat(HttpRequest& http) { return Counted(Generate(http, ApiKind::kChat)); }
  HttpResponse Completion(HttpRequest& http) { return Counted(Generate(http, ApiKind::kCompletion)); }

  // --- an answer ---

  // A request under way: lives as long as somebody works on its response.
  struct Exchange {
    Exchange(Impl* impl_in, const HttpRequest* http_in) : impl(impl_in), http(http_in) { impl->AddOpen(1); }
    ~Exchange() {
      run.reset();
      impl->AddOpen(-1);
    }
    // Nobody waits for the answer, or nobody may.
    bool over() const { return impl->stopping_ || http->ClientLeft(); }

    Impl* const impl;
    const HttpRequest* const http;
    ReplyHead head;
    AnswerStream::Options streamed;
    std::unique_ptr<AnswerRun> run;
    AnswerRun::State state;  // the newest
  };

  // What got an error counts here; what was answered counts where it ends.
  HttpResponse Counted(HttpResponse response) {
    if (response.status == kClientLeft) {
      metrics_.CountRequest(Outcome::kLeft);
    } else if (response.status >= 400) {
      metrics_.CountRequest(response.status == 500 ? Outcome::kFailed : Outcome::kRefused);
    }
    return response;
  }

  HttpResponse Generate(HttpRequest& http, ApiKind kind) {
    if (draining_) return ErrorResponse(503, "the node is stopping");
    const auto exchange = std::make_shared<Exchange>(this, &http);
    const Result<std::string> body = http.Body();
    if (!body.ok()) {
      return ErrorResponse(body.status().code() == ErrorCode::kLimit ? 413 : 400, body.status().message());
    }
    std::string param;
    const Result<ApiRequest> api = Parse(kind, *body, &param);
    if (!api.ok()) return ErrorResponse(400, api.status().message(), param);
    if (!api->model.empty() && api->model != model()) {
      return ErrorResponse(404, "there is no model \"" + api->model + "\" here; there is \"" + model() + "\"", "model",
                           "model_not_found");
    }
    Result<GenerateRequest> request = MakeRequest(*api);
    if (!request.ok()) {
      const bool too_long = request.status().code() == ErrorCode::kLimit;
      return ErrorResponse(400, request.status().message(), kind == ApiKind::kChat ? "messages" : "prompt",
                           too_long ? "context_length_exceeded" : "");
    }
    exchange->head = {kind, NewId(kind), UnixTime(), model(), int(request->prompt.size())};
    exchange->streamed = {api->include_usage, api->drafts};
    exchange->run = std::make_unique<AnswerRun>(answerer_, std::move(request).value());
    return api->stream ? Stream(exchange) : Whole(exchange.get());
  }

  Result<ApiRequest> Parse(ApiKind kind, const std::string& body, std::string* param) {
    const std::lock_guard lock(parsing_);
    return ParseApiRequest(kind, body, answerer_->engine().info().max_tokens, param);
  }

  Result<GenerateRequest> MakeRequest(const ApiRequest& api) const {
    GenerateRequest request;
    LYNX_ASSIGN_OR_RETURN(request.prompt, PromptTokens(api.prompt));
    const EngineInfo& info = answerer_->engine().info();
    const int tokens = int(request.prompt.size());
    if (tokens == 0) return Invalid("the prompt has no tokens");
    if (tokens >= info.max_tokens) {
      return LimitExceeded("the prompt has " + std::to_string(tokens) + " tokens, the context " +
                           std::to_string(info.max_tokens));
    }
    request.codec = api.codec.value_or(options_.codec);
    request.max_drafts = api.max_drafts.value_or(options_.max_drafts);
    if (api.drafts) request.anchor_order = AnchorOrder::kFirst;
    request.sampling = api.sampling;
    if (!api.has_seed) request.sampling.seed = RandomNumber();
    request.stop = api.stop;
    const int room = info.max_tokens - tokens + 1;
    request.max_new_tokens = std::min(api.max_tokens.value_or(room), room);
    return request;
  }

  Result<std::vector<Token>> PromptTokens(const ApiPrompt& prompt) const {
    const Engine& engine = answerer_->engine();
    if (const auto* text = std::get_if<std::string>(&prompt)) return Tokenize(*text);
    if (const auto* messages = std::get_if<std::vector<ChatMessage>>(&prompt)) {
      LYNX_ASSIGN_OR_RETURN(const std::string text, engine.ChatPrompt(*messages));
      return Tokenize(text);
    }
    const auto& tokens = std::get<std::vector<Token>>(prompt);
    for (const Token token : tokens) {
      if (token >= engine.info().vocab_size) {
        return Invalid("token " + std::to_string(token) + " is not in the vocabulary");
      }
    }
    return tokens;
  }

  // A tokenizer takes seconds for a megabyte, and minutes for some: not for what can't fit.
  Result<std::vector<Token>> Tokenize(const std::string& text) const {
    const Engine& engine = answerer_->engine();
    if (text.size() > longest_token_ * std::size_t(engine.info().max_tokens)) {
      return LimitExceeded("the prompt has " + std::to_string(text.size()) + " bytes, more than the context of " +
                           std::to_string(engine.info().max_tokens) + " tokens takes");
    }
    return engine.Tokenize(text, true);
  }

  HttpResponse Whole(Exchange* exchange) {
    while (!exchange->state.ended) {
      if (exchange->over()) return Abandon(exchange);
      exchange->state = exchange->run->Wait(kLookNs);
    }
    const Result<GenerateResult>& result = exchange->run->result();
    if (!result.ok()) return FailedResponse(exchange, result.status());
    Finish(exchange, true);
    HttpResponse response;
    response.body = AnswerJson(exchange->head, *result) + "\n";
    return response;
  }

  // Nothing is sent before there is a token, so that what fails until then has the status of an error.
  HttpResponse Stream(const std::shared_ptr<Exchange>& exchange) {
    while (!exchange->state.ended && exchange->state.tokens.empty()) {
      if (exchange->over()) return Abandon(exchange.get());
      exchange->state = exchange->run->Wait(kLookNs);
    }
    if (exchange->state.ended && !exchange->run->result().ok()) {
      return FailedResponse(exchange.get(), exchange->run->result().status());
    }
    HttpResponse response;
    response.content_type = "text/event-stream; charset=utf-8";
    response.headers.emplace_back("Cache-Control", "no-store");
    response.stream = [this, exchange](const HttpSend& send) { SendEvents(exchange.get(), send); };
    return response;
  }

  void SendEvents(Exchange* exchange, const HttpSend& send) {
    AnswerStream stream(&answerer_->engine(), exchange->head, exchange->streamed);
    bool there = send(stream.Begin());
    for (;;) {
      const std::string events = stream.Next(exchange->state);
      there = there && (events.empty() || send(events));
      if (exchange->state.ended || !there || exchange->over()) break;
      exchange->state = exchange->run->Wait(kLookNs);
    }
    const bool ended = exchange->state.ended;
    const Result<GenerateResult> result =
        ended ? exchange->run->result() : Result<GenerateResult>(IoError("the node is stopping"));
    there = there && send(stream.End(result));
    if (!there || (!ended && !stopping_)) {
      metrics_.CountRequest(Outcome::kLeft);
      return Log(exchange, "the client left");
    }
    Finish(exchange, result.ok());
  }

  // --- ends ---

  void Finish(Exchange* exchange, bool done) {
    metrics_.CountRequest(done ? Outcome::kDone : Outcome::kFailed);
    if (!done) return Log(exchange, "failed");
    const GenerateResult& result = *exchange->run->result();
    metrics_.CountAnswer(exchange->head.prompt_tokens, result);
    char times[96];
    std::snprintf(times, sizeof times, ", first token %.3f s, last %.3f s", result.ttft_s,
                  result.commit_s.empty() ? 0.0 : result.commit_s.back());
    Log(exchange, std::to_string(result.tokens.size()) + " tokens, " + std::to_string(result.accepted) + " of " +
                      std::to_string(result.drafted) + " drafts kept" + times);
  }

  HttpResponse FailedResponse(Exchange* exchange, const Status& status) {
    Log(exchange, status.ToString());
    return ErrorResponse(HttpStatusOf(status.code()), status.message());
  }

  // Nobody reads the response, unless the node is stopping.
  HttpResponse Abandon(Exchange* exchange) {
    if (stopping_) return ErrorResponse(503, "the node is stopping");
    Log(exchange, "the client left");
    return ErrorResponse(kClientLeft, "the client left");
  }

  void Log(const Exchange* exchange, const std::string& what) {
    if (!options_.log) return;
    options_.log(exchange->head.id + ": prompt " + std::to_string(exchange->head.prompt_tokens) + " tokens; " + what);
  }

  // --- small things ---

  const std::string& model() const { return answerer_->engine().info().model; }

  std::string NewId(ApiKind kind) {
    char id[32];
    std::snprintf(id, sizeof id, "%s-%016llx", kind == ApiKind::kChat ? "chatcmpl" : "cmpl",
                  static_cast<unsigned long long>(next_id_++));
    return id;
  }

  void AddOpen(int change) {
    {
      const std::lock_guard lock(mutex_);
      open_ += change;
    }
    closed_.notify_all();
  }

  int open() const {
    const std::lock_guard lock(mutex_);
    return open_;
  }

  Answerer* const answerer_;
  const FrontOptions options_;
  const std::int64_t started_;
  const std::size_t longest_token_;  // in bytes
  std::atomic<std::uint64_t> next_id_;
  Metrics metrics_;
  std::atomic<bool> draining_ = false;  // nothing new
  std::atomic<bool> stopping_ = false;  // nothing at all
  std::mutex parsing_;                  // one body at a time: as JSON it takes many times its bytes
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  int open_ = 0;  // requests under way
  std::unique_ptr<HttpServer> server_;
};

Status CheckFront(const FrontOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const Address address, ParseAddress(options.listen));
  if (options.keys || options.open || IsLoopback(address.host)) return Ok();
  return Invalid(options.listen + " can be reached from other machines: give --api-keys FILE, or --no-auth");
}

Front::Front(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Front::~Front() = default;

Result<std::unique_ptr<Front>> Front::Start(Answerer* answerer, FrontOptions options) {
  auto impl = std::make_unique<Impl>(answerer, std::move(options));
  LYNX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Front>(new Front(std::move(impl)));
}

const std::string& Front::address() const { return impl_->address(); }
void Front::Drain(TimeNs timeout) { impl_->Drain(timeout); }

}  // namespace lynx
