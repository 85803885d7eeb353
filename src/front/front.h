// The HTTP front of a decode node: OpenAI's completions and chat completions, health, metrics and a page for people.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "front/answerer.h"
#include "front/api_keys.h"
#include "front/http_server.h"
#include "lynx/result.h"

namespace lynx {

struct FrontOptions {
  std::string listen = "127.0.0.1:8080";
  HttpLimits limits;
  std::optional<ApiKeys> keys;  // who may ask; without, everyone who can connect
  bool open = false;            // without keys, an address that is not this machine's own is refused unless this is set
  std::string codec = "lynx";   // for requests that name none
  int max_drafts = 64;
  // Called with one line per request for an answer, by many threads. May be empty.
  std::function<void(std::string_view line)> log;
};

// kInvalid for an address that is none, or that others can reach without a key although nobody said they may.
Status CheckFront(const FrontOptions& options);

class Front {
 public:
  // Answers at once. An error of CheckFront, or kIo with what to do. The answerer outlives it.
  static Result<std::unique_ptr<Front>> Start(Answerer* answerer, FrontOptions options);
  // Ends what is under way.
  ~Front();

  // "127.0.0.1:8080".
  const std::string& address() const;
  // Refuses new requests, waits until those under way have ended or the time is over, and ends what then still runs.
  void Drain(TimeNs timeout);

 private:
  class Impl;
  explicit Front(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx
