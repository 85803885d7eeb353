// The prefill node: reads prompts, encodes their cache page by page while it grows, and sends it to the node that
// asked.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lynx/codec.h"
#include "lynx/engine.h"
#include "lynx/result.h"
#include "lynx/wire.h"
#include "net/socket.h"
#include "net/tls.h"

namespace lynx {

struct PrefillOptions {
  std::string name = "prefill";
  std::string listen = "127.0.0.1:7000";
  TcpOptions tcp;
  TlsOptions tls;
  int codec_threads = 1;          // that encode pages
  TimeNs drain = 10 * kSecondNs;  // how long what is under way may go on once the node is to stop
  // Encoded pages that decode nodes have not taken yet, over all requests: prompts are still read beyond this, their
  // pages are encoded later. A decode node for which nothing is held always gets one page's tokens.
  std::uint64_t max_held_bytes = std::uint64_t{1} << 30;
  int kept_caches = 4;             // recent prompts whose caches stay; the engine needs one sequence more
  std::optional<Profile> profile;  // of the engine's model, for codecs that know what to do with it
  // Called with one line per event worth a log line, on the serving and the network thread. May be empty.
  std::function<void(std::string_view line)> log;
};

class PrefillNode {
 public:
  // The engine must outlive the node; it is used only inside Run and, after it, by the destructor.
  static Result<std::unique_ptr<PrefillNode>> Start(Engine* engine, const PrefillOptions& options);
  ~PrefillNode();

  const std::string& listen_address() const;
  // Of encoded pages, now.
  std::uint64_t held_bytes() const;
  // Of all decode nodes, now.
  int open_requests() const;
  // Serves until `stop` is true (looked at between prefill batches and every 100 ms), then refuses what is new and ends
  // with the last open request, or after `drain`.
  void Run(const std::atomic<bool>& stop);

 private:
  class Impl;
  explicit PrefillNode(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx
