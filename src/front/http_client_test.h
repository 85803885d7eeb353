// For tests: an HTTP client that sends whatever bytes a test wants, and an answerer that does what a test says.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/toy/toy_engine.h"
#include "front/front.h"
#include "net/socket.h"

namespace lynx {

struct TestResponse {
  int status = 0;
  std::string head;  // status line and headers
  std::string body;  // chunks put together
  bool complete = false;
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  std::string error(const char* field = "message") const {
    const nlohmann::json parsed = json();
    if (!parsed.is_object() || !parsed.contains("error")) return "no error: " + body;
    return parsed["error"][field].is_string() ? parsed["error"][field].get<std::string>() : std::string();
  }
};

class TestClient {
 public:
  explicit TestClient(const std::string& address) : fd_(ConnectTo(address, kSecondNs, {}).value()) {}

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto count = WriteSome(fd_, std::as_bytes(std::span(bytes)));
      if (!count.ok()) return;  // the server may refuse before it has everything
      bytes.remove_prefix(*count);
      if (*count == 0) WaitWritable(fd_, kSecondNs);
    }
  }
  void Post(const std::string& path, std::string_view body, const std::string& headers = "") {
    Send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
  }
  void Get(const std::string& path, const std::string& headers = "") {
    Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  }

  // What came until it has `words` or the connection ended.
  const std::string& ReadUntil(std::string_view words) {
    while (received_.find(words) == std::string::npos && Fill()) {
    }
    return received_;
  }

  // The next response. Not complete: the connection ended first.
  TestResponse Read() {
    TestResponse response;
    const std::size_t head = Find("\r\n\r\n");
    if (head == std::string::npos) return response;
    response.head = received_.substr(0, head + 2);
    response.status = std::stoi(response.head.substr(9, 3));
    received_.erase(0, head + 4);
    const auto length = response.head.find("Content-Length: ");
    response.complete = length == std::string::npos
                            ? ReadChunks(&response.body)
                            : Take(std::stoul(response.head.substr(length + 16)), &response.body);
    return response;
  }
  // The server has ended the connection.
  bool Ended() {
    while (Fill()) {
    }
    return ended_;
  }
  void Leave() { fd_ = Fd(); }

 private:
  bool Fill() {
    if (ended_ || !WaitReadable(fd_, 20 * kSecondNs)) return false;
    std::array<char, 65536> buffer;
    const auto count = ReadSome(fd_, std::as_writable_bytes(std::span(buffer)));
    ended_ = !count.ok();
    if (!ended_) received_.append(buffer.data(), *count);
    return !ended_;
  }
  std::size_t Find(std::string_view words) {
    while (received_.find(words) == std::string::npos) {
      if (!Fill()) return std::string::npos;
    }
    return received_.find(words);
  }
  bool Take(std::size_t count, std::string* to) {
    while (received_.size() < count) {
      if (!Fill()) return false;
    }
    to->append(received_, 0, count);
    received_.erase(0, count);
    return true;
  }
  bool ReadChunks(std::string* body) {
    for (;;) {
      const std::size_t line = Find("\r\n");
      if (line == std::string::npos) return false;
      const std::size_t size = std::stoul(received_, nullptr, 16);
      received_.erase(0, line + 2);
      std::string end;
      if (!Take(size, body) || !Take(2, &end)) return false;
      if (size == 0) return true;
    }
  }

  Fd fd_;
  std::string received_;
  bool ended_ = false;
};

inline TestResponse PostOnce(const std::string& address, const std::string& path, const std::string& body,
                             const std::string& headers = "") {
  TestClient client(address);
  client.Post(path, body, headers);
  return client.Read();
}

// The pieces of a stream: name (may be empty) and data.
inline std::vector<std::pair<std::string, std::string>> Events(const std::string& body) {
  std::vector<std::pair<std::string, std::string>> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = body.find("\n\n", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "an event has no end";
      break;
    }
    std::string event = body.substr(at, end - at), name;
    if (event.starts_with("event: ")) {
      name = event.substr(7, event.find('\n') - 7);
      event.erase(0, event.find('\n') + 1);
    }
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    events.emplace_back(name, event.substr(6));
    at = end + 2;
  }
  return events;
}

// Answers as a test says, without nodes. The toy engine's text.
class ScriptedAnswerer final : public Answerer {
 public:
  using Script =
      std::function<Result<GenerateResult>(const GenerateRequest&, GenerateObserver*, const std::atomic<bool>* cancel)>;
  explicit ScriptedAnswerer(Script script, const ToyOptions& toy = {.vocab = 96})
      : script_(std::move(script)), engine_(MakeToyEngine(toy).value()) {}

  const Engine& engine() const override { return *engine_; }
  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer,
                                  const std::atomic<bool>* cancel) override {
    ++under_way;
    const auto result = script_(request, observer, cancel);
    --under_way;
    return result;
  }
  bool ready() const override { return is_ready; }
  EngineLoopStats stats() const override { return {.running = under_way, .steps = 7, .kept_bytes = 9}; }

  std::atomic<int> under_way = 0;
  std::atomic<bool> is_ready = true;

 private:
  const Script script_;
  const std::unique_ptr<Engine> engine_;
};

}  // namespace lynx
