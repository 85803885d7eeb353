// What `lynx decode` and `lynx serve` share: a decode node behind HTTP.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "command.h"
#include "front/front.h"
#include "lynx/engine.h"
#include "node_flags.h"
#include "serve/prefill_pool.h"

namespace lynx {

struct FrontFlags {
  std::string http = "127.0.0.1:8080";
  std::string api_keys;
  bool no_auth = false;
  int requests = 4;
  int waiting = 64;
  int keep_mib = 0;
  int connections = 128;
  int max_body_mib = 8;
  double drain_s = 30;
  std::string codec = "lynx";
  int max_drafts = 64;
  NodeFlags node;

  void AddTo(CLI::App* app);
  // Reads the keys and checks what can be checked before an engine is opened.
  Result<FrontOptions> Options() const;
};

// What the help of both commands says about using them.
extern const char* const kFrontHelp;

// Answers over HTTP until the process is told to stop, with caches from prefill nodes. Prints
// "listening on http://HOST:PORT".
Status RunFront(Engine* engine, const PrefillPoolOptions& prefill, const FrontFlags& flags, FrontOptions options);

}  // namespace lynx
