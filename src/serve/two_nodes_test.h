// For tests: prefill and decode nodes with toy engines over real sockets, a proxy that cuts a connection, a watchdog.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/link_emulator.h"
#include "net/socket.h"
#include "serve/decode_node.h"
#include "serve/prefill_node.h"
#include "serve/toy_cache_test.h"

namespace lynx {

// Ends the process when a test hangs: a test must end by itself.
class Watchdog {
 public:
  explicit Watchdog(int seconds)
      : thread_([this, seconds] {
          std::unique_lock lock(mutex_);
          if (done_.wait_for(lock, std::chrono::seconds(seconds), [this] { return over_; })) return;
          std::fprintf(stderr, "hangs: no end after %d s\n", seconds);
          std::abort();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    done_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool over_ = false;
  std::thread thread_;
};

inline ToyOptions LongToy() {
  ToyOptions options;
  options.max_tokens = 1024;
  options.end_of_text_bias = -100;  // texts end where a test says so
  return options;
}

// A prefill node that serves on a thread of its own.
class PrefillServer {
 public:
  explicit PrefillServer(const ToyOptions& toy = LongToy(), const std::string& listen = "127.0.0.1:0")
      : PrefillServer(MakeToy(toy), listen) {}
  explicit PrefillServer(std::unique_ptr<Engine> engine, const std::string& listen = "127.0.0.1:0",
                         std::optional<Profile> profile = {})
      : engine_(std::move(engine)) {
    PrefillOptions options;
    options.listen = listen;
    options.kept_caches = 2;
    options.drain = 0;
    options.codec_threads = 3;
    options.profile = std::move(profile);
    auto node = PrefillNode::Start(engine_.get(), options);
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    node_ = std::move(node).value();
    address_ = node_->listen_address();
    thread_ = std::thread([this] { node_->Run(stop_); });
  }
  ~PrefillServer() { Stop(); }
  // As at the end of the process: whatever is under way ends.
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    node_.reset();
  }
  const std::string& address() const { return address_; }
  const PrefillNode& node() const { return *node_; }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PrefillNode> node_;
  std::string address_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class DecodeClient {
 public:
  explicit DecodeClient(const std::string& address, const ToyOptions& toy = LongToy())
      : DecodeClient(address, MakeToy(toy)) {}
  DecodeClient(const std::string& address, std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {
    DecodeOptions options;
    options.codec_threads = 2;
    options.retries = 0;
    options.prefill.addresses = {address};
    options.max_running = engine_->info().max_sequences - 1;
    auto node = DecodeNode::Start(engine_.get(), options);
    EXPECT_TRUE(node.ok()) << node.status().ToString();
    node_ = std::move(node).value();
    connected_ = node_->AwaitPrefill();
  }
  Result<GenerateResult> Generate(const GenerateRequest& request, GenerateObserver* observer = nullptr,
                                  const std::atomic<bool>* cancel = nullptr) {
    if (!connected_.ok()) return connected_;
    return node_->Generate(request, observer, cancel);
  }
  Status connected() const { return connected_; }
  Engine* engine() { return engine_.get(); }

 private:
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DecodeNode> node_;
  Status connected_;
};

// Calls something at every sign of life of a request.
class CountingObserver : public GenerateObserver {
 public:
  explicit CountingObserver(std::function<void(int call)> function = nullptr) : function_(std::move(function)) {}
  void OnText(std::string_view more) override { text += more; }
  void OnTokens(const std::vector<Token>& now, int committed_now) override {
    if (int(now.size()) < committed_now) ADD_FAILURE() << "more committed than there are";
    if (committed_now < committed) ADD_FAILURE() << "a committed token was taken back";
    for (int i = 0; i < committed; ++i) {
      if (now[i] != tokens[i]) ADD_FAILURE() << "committed token " << i << " changed";
    }
    tokens = now;
    committed = committed_now;
    if (function_) function_(calls++);
  }
  void OnWaiting(const TransferProgress&) override {
    if (function_) function_(calls++);
  }
  std::string text;
  std::vector<Token> tokens;
  int committed = 0;
  int calls = 0;

 private:
  std::function<void(int)> function_;
};

// Runs the request while the prefill node dies at the observer's call number `death`; another begins at its address, as
// a new process would.
inline Result<GenerateResult> GenerateWhileDying(DecodeNode* node, const GenerateRequest& request,
                                                 std::unique_ptr<PrefillServer>* dying, int death) {
  std::atomic<bool> die = false;
  CountingObserver observer([&](int call) { die = die || call == death; });
  std::thread killer([&] {
    while (!die) std::this_thread::yield();
    const std::string address = (*dying)->address();
    dying->reset();
    *dying = std::make_unique<PrefillServer>(LongToy(), address);
  });
  auto result = node->Generate(request, &observer, nullptr);
  die = true;
  killer.join();
  return result;
}

inline GenerateRequest RequestFor(std::vector<Token> prompt, const std::string& codec = "nested",
                                  const SamplingOptions& sampling = {}) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.codec = codec;
  request.sampling = sampling;
  request.max_new_tokens = 40;
  request.check = true;
  return request;
}

// What the request must give, without nodes.
inline std::vector<Token> Expected(const GenerateRequest& request, const ToyOptions& toy = LongToy()) {
  const auto engine = MakeToy(toy);
  const auto codec = MakeCodec(request.codec, engine->info().shape).value();
  const int tokens = int(request.prompt.size());
  const Prefilled prefilled = Prefill(engine.get(), request.prompt);
  const CacheBlock cache = DecodeCache(*codec, EncodeCache(*codec, prefilled.cache), engine->info().shape, tokens,
                                       codec->info().stream_count - 1);
  return DecodePlainly(engine.get(), cache, SampleToken(prefilled.logits, request.sampling, 0),
                       std::min(request.max_new_tokens, toy.max_tokens - tokens + 1), request.sampling);
}

// The result is a success with exactly these tokens, proved by the node's own check too.
inline void ExpectExact(const Result<GenerateResult>& result, const std::vector<Token>& expected) {
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_TRUE(result->checked);
  EXPECT_TRUE(result->exact) << result->difference;
  EXPECT_EQ(result->tokens, expected);
  EXPECT_EQ(result->commit_s.size(), expected.size());
}

// A proxy for one connection that, after `limit` bytes in one direction, closes both ends or flips a bit of the last of
// them and goes on. SIZE_MAX: it only passes on.
class Chopper {
 public:
  enum Direction { kToServer = 0, kToClient = 1 };
  enum Fault { kCut, kFlip };
  Chopper(const std::string& to, Direction direction, std::size_t limit, Fault fault = kCut)
      : listener_(ListenOn("127.0.0.1:0").value()), to_(to), direction_(direction), fault_(fault), left_(limit) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Chopper() {
    stopping_ = true;
    thread_.join();
  }
  std::string address() const { return LocalAddress(listener_); }
  std::size_t passed(Direction direction) const { return passed_[direction]; }

 private:
  void Run() {
    Fd client;
    while (!stopping_ && !client.valid()) {
      pollfd waiting{listener_.get(), POLLIN, 0};
      if (poll(&waiting, 1, 20) > 0) client = AcceptFrom(listener_, {});
    }
    auto server = ConnectTo(to_, kSecondNs, {});
    if (!client.valid() || !server.ok()) return;
    const Fd* ends[2] = {&client, &*server};
    std::vector<std::byte> buffer(4096);
    while (!stopping_ && (left_ > 0 || fault_ == kFlip)) {
      pollfd polled[2] = {{ends[0]->get(), POLLIN, 0}, {ends[1]->get(), POLLIN, 0}};
      if (poll(polled, 2, 20) <= 0) continue;
      for (int from = 0; from < 2; ++from) {
        if (polled[from].revents != 0 && !Pass(*ends[from], *ends[1 - from], from, &buffer)) return;
      }
    }
  }
  // Bytes of end 0 travel to the server.
  bool Pass(const Fd& from, const Fd& to, int direction, std::vector<std::byte>* buffer) {
    const bool counted = direction == direction_ && left_ > 0;
    const std::size_t most = counted ? std::min(buffer->size(), left_) : buffer->size();
    const Result<std::size_t> count = ReadSome(from, std::span(*buffer).first(most));
    if (!count.ok()) return false;
    if (counted) left_ -= *count;
    if (counted && left_ == 0 && fault_ == kFlip) (*buffer)[*count - 1] ^= std::byte{0x10};
    for (std::size_t at = 0; at < *count;) {
      const Result<std::size_t> sent = WriteSome(to, std::span(*buffer).first(*count).subspan(at));
      if (!sent.ok() || stopping_) return false;
      if (*sent == 0) std::this_thread::yield();
      at += *sent;
    }
    passed_[direction] += *count;
    return true;
  }

  Fd listener_;
  const std::string to_;
  const int direction_;
  const Fault fault_;
  std::size_t left_;
  std::atomic<std::size_t> passed_[2] = {0, 0};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace lynx
