// Prefill and decode nodes as they are used, over loopback sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "codec/lynx_profile.h"
#include "net/net_node.h"
#include "serve/node_layout.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kWatchdogSeconds = 300;  // a sanitizer on a busy machine is slow

class Nodes : public ::testing::Test {
 protected:
  Watchdog watchdog_{kWatchdogSeconds};
};

SamplingOptions Rejection(std::uint64_t seed) {
  SamplingOptions sampling = Coupled(0.9f, seed);
  sampling.method = SamplingMethod::kRejection;
  return sampling;
}

TEST_F(Nodes, EveryCodecAndSamplingMethod) {
  const PrefillServer server;
  DecodeClient client(server.address());
  for (const std::string& codec : CodecNames()) {
    SCOPED_TRACE(codec);
    const auto prompt = RandomPrompt(70, 1);
    for (const SamplingOptions& sampling : {SamplingOptions{}, Coupled(0.9f, 3)}) {
      const GenerateRequest request = RequestFor(prompt, codec, sampling);
      ExpectExact(client.Generate(request), Expected(request));
    }
    const auto result = client.Generate(RequestFor(prompt, codec, Rejection(4)));
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_TRUE(result->exact) << result->difference;
    EXPECT_TRUE(result->tokens.size() == 40 || result->reason == FinishReason::kEndOfText);
  }
}

TEST_F(Nodes, PromptLengths) {
  const PrefillServer server;
  DecodeClient client(server.address());
  for (const int length : {1, 31, 32, 33, 255, 256, 257, 600}) {
    for (const std::string codec : {"nested", "int8", "lynx:streams=3"}) {
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(std::to_string(length) + " " + codec + (overlap ? " overlap" : ""));
        GenerateRequest request = RequestFor(RandomPrompt(length, std::uint64_t(length)), codec, Coupled(0.8f, 5));
        request.overlap = overlap;
        request.max_new_tokens = 12;
        const auto result = client.Generate(request);
        ExpectExact(result, Expected(request));
        EXPECT_EQ(result.ok() ? result->elements : 0, std::int64_t{length} * 64);
      }
    }
  }
}

// A decode node that only keeps what arrives.
class Collector {
 public:
  explicit Collector(const std::string& address) {
    NetOptions options;
    options.node.role = NodeRole::kDecode;
    options.node.epoch = 77;
    options.node.layout = LayoutOf(engine_->info());
    options.node.codecs = CodecNames();
    net_ = NetNode::Start(options, [this](TransferNode& node, TransferEvent event, TimeNs now) {
             OnEvent(node, std::move(event), now);
           }).value();
    peer_ = net_->Connect(address, kSecondNs).value();
    Wait([this] { return up_; });
  }
  EncodedCache Collect(const TransferRequest& request) {
    pages_.clear();
    over_ = false;
    net_->Call([&](TransferNode& node, TimeNs now) { ASSERT_TRUE(node.Request(peer_, request, now).ok()); });
    Wait([this] { return over_; });
    return pages_;
  }

 private:
  void Wait(const std::function<bool()>& until) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, until);
  }
  void OnEvent(TransferNode& node, TransferEvent event, TimeNs now) {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<PeerUp>(event)) up_ = true;
    if (const auto* offer = std::get_if<OfferArrived>(&event)) {
      EXPECT_TRUE(node.AcceptOffer(offer->request, now).ok());
    }
    if (auto* page = std::get_if<PageArrived>(&event)) {
      auto& streams = pages_[page->address];
      if (int(streams.size()) <= page->stream) streams.resize(page->stream + 1);
      streams[page->stream] = std::move(page->bytes);
    }
    if (const auto* finished = std::get_if<RequestFinished>(&event)) {
      EXPECT_TRUE(finished->status.ok()) << finished->status.ToString();
      over_ = true;
    }
    changed_.notify_all();
  }

  std::unique_ptr<Engine> engine_ = MakeToy(LongToy());
  std::mutex mutex_;
  std::condition_variable changed_;
  bool up_ = false, over_ = false;
  EncodedCache pages_;
  PeerId peer_ = 0;
  std::unique_ptr<NetNode> net_;  // last: its thread uses the rest
};

std::map<PageAddress, std::vector<std::vector<std::byte>>> Contents(const EncodedCache& encoded) {
  std::map<PageAddress, std::vector<std::vector<std::byte>>> contents;
  for (const auto& [address, streams] : encoded) {
    for (const SharedBytes& bytes : streams) contents[address].push_back(*bytes);
  }
  return contents;
}

// Overlap, a kept cache, a longer prompt: the page streams are always those of a fresh prefill.
TEST_F(Nodes, PageStreamsDoNotDependOnHowTheyCameAbout) {
  const PrefillServer server;
  Collector collector(server.address());
  const auto engine = MakeToy(LongToy());
  const auto whole = RandomPrompt(300, 6);
  for (const int length : {257, 300}) {
    TransferRequest request;
    request.tokens = {whole.begin(), whole.begin() + length};
    const CacheBlock cache = Prefill(engine.get(), request.tokens).cache;
    for (const std::string codec : {"nested", "int8", "lynx:streams=3"}) {
      const auto made = MakeCodec(codec, engine->info().shape).value();
      request.codec = made->info().spec;
      const auto expected = Contents(EncodeCache(*made, cache));
      for (const bool reuse : {true, false}) {
        for (const bool overlap : {true, false}) {
          request.reuse = reuse;
          request.overlap = overlap;
          EXPECT_TRUE(Contents(collector.Collect(request)) == expected)
              << codec << " " << length << (reuse ? " reuse" : "") << (overlap ? " overlap" : "");
        }
      }
    }
  }
}

// Only the prefill node has the profile.
TEST_F(Nodes, AProfileSteersTheEncoder) {
  const auto engine = MakeToy(LongToy());
  const CacheShape& shape = engine->info().shape;
  LynxProfile channels;
  for (const LayerShape& layer : shape.layers) {
    for (const int dim : {layer.key_dim, layer.value_dim}) {
      auto& row = channels.emplace_back(std::size_t(layer.kv_heads * dim));
      for (std::size_t c = 0; c < row.size(); ++c) row[c] = {-64, std::int16_t(c % 2 == 0 ? 128 : 0)};
    }
  }
  const Profile profile = WriteLynxProfile(channels, shape);
  const PrefillServer server(MakeToy(LongToy()), "127.0.0.1:0", profile);
  const auto codec = MakeCodec("lynx", shape, &profile).value();
  TransferRequest request;
  request.tokens = RandomPrompt(300, 8);
  request.codec = codec->info().spec;
  const CacheBlock cache = Prefill(engine.get(), request.tokens).cache;
  Collector collector(server.address());
  const auto contents = Contents(collector.Collect(request));
  EXPECT_TRUE(contents == Contents(EncodeCache(*codec, cache)));
  EXPECT_FALSE(contents == Contents(EncodeCache(*MakeCodec("lynx", shape).value(), cache)));
  const auto result = DecodeClient(server.address()).Generate(RequestFor(request.tokens, "lynx"));
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_TRUE(result->exact) << result->difference;

  Profile other = WriteLynxProfile(LynxProfile(2), CacheShape{ElementType::kBf16, {LayerShape{}}});
  PrefillOptions options;
  options.listen = "127.0.0.1:0";
  options.kept_caches = 0;
  options.profile = other;
  EXPECT_EQ(PrefillNode::Start(engine.get(), options).status().code(), ErrorCode::kInvalid);
}

TEST_F(Nodes, KeptCachesAreUsed) {
  const PrefillServer server;
  DecodeClient client(server.address());
  const auto whole = RandomPrompt(300, 7);
  const auto reused = [&](int length, bool reuse) {
    GenerateRequest request = RequestFor({whole.begin(), whole.begin() + length});
    request.reuse = reuse;
    const auto result = client.Generate(request);
    ExpectExact(result, Expected(request));
    return result.ok() ? result->reused_tokens : -1;
  };
  EXPECT_EQ(reused(200, true), 0);
  EXPECT_EQ(reused(200, true), 200);
  EXPECT_EQ(reused(300, true), 200);
  EXPECT_EQ(reused(300, false), 0);
  EXPECT_EQ(reused(100, true), 99);
}

TEST_F(Nodes, EndOfText) {
  ToyOptions toy = LongToy();
  toy.end_of_text_bias = 2.5f;
  const PrefillServer server(toy);
  DecodeClient client(server.address(), toy);
  int ended = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GenerateRequest request = RequestFor(RandomPrompt(40, seed), "nested", Coupled(1.0f, seed));
    const auto result = client.Generate(request);
    const auto expected = Expected(request, toy);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->tokens, expected);
    const bool ends = expected.back() == toy.vocab - 1;
    EXPECT_EQ(result->reason, ends ? FinishReason::kEndOfText : FinishReason::kMaxTokens);
    // If token 0 ends the text the transfer is not waited for: nothing to check.
    EXPECT_EQ(result->exact, result->checked);
    EXPECT_TRUE(result->checked || expected.size() == 1);
    ended += ends;
  }
  EXPECT_GT(ended, 5);
}

TEST_F(Nodes, MaxTokensAndContext) {
  ToyOptions toy = LongToy();
  toy.max_tokens = 64;
  const PrefillServer server(toy);
  DecodeClient client(server.address(), toy);
  GenerateRequest request = RequestFor(RandomPrompt(50, 8));
  for (const int most : {1, 2, 3, 15, 16}) {
    request.max_new_tokens = most;
    const auto result = client.Generate(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->tokens, Expected(request, toy));
    EXPECT_EQ(int(result->tokens.size()), std::min(most, 15));
    EXPECT_EQ(result->reason, most <= 15 ? FinishReason::kMaxTokens : FinishReason::kContextFull);
    EXPECT_EQ(result->exact, result->checked);
  }
  request.prompt = RandomPrompt(63, 9);
  const auto full = client.Generate(request);
  ASSERT_TRUE(full.ok()) << full.status().ToString();
  EXPECT_EQ(full->tokens, Expected(request, toy));
  EXPECT_EQ(full->reason, FinishReason::kContextFull);
}

TEST_F(Nodes, StopStrings) {
  const PrefillServer server;
  DecodeClient client(server.address());
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GenerateRequest request = RequestFor(RandomPrompt(40, seed), "nested", Coupled(1.0f, seed));
    const auto free = client.Generate(request);
    ASSERT_TRUE(free.ok()) << free.status().ToString();
    const std::size_t at = seed * 3 % (free->text.size() - 2);
    request.stop = {"\x01 never", free->text.substr(at, 2)};
    CountingObserver observer;
    const auto stopped = client.Generate(request, &observer);
    ASSERT_TRUE(stopped.ok()) << stopped.status().ToString();
    EXPECT_EQ(stopped->text, free->text.substr(0, free->text.find(request.stop[1])));
    EXPECT_EQ(stopped->reason, FinishReason::kStopped);
    EXPECT_EQ(observer.text, stopped->text) << "shown text is never taken back";
    EXPECT_TRUE(std::equal(stopped->tokens.begin(), stopped->tokens.end(), free->tokens.begin()));
    EXPECT_EQ(stopped->exact, stopped->checked);
  }
}

TEST_F(Nodes, DraftsOnASlowLink) {
  const PrefillServer server;
  LinkOptions link;
  link.to = server.address();
  link.bits_per_second = 1e6;
  const auto emulator = LinkEmulator::Start(link).value();
  DecodeClient client(emulator->listen_address());
  int drafted = 0;
  for (const int cap : {0, 1, 64}) {
    for (const std::string codec : {"nested", "paper", "int4", "lynx"}) {
      SCOPED_TRACE(codec + ", at most " + std::to_string(cap) + " drafts");
      GenerateRequest request = RequestFor(RandomPrompt(257, 10), codec);
      request.max_drafts = cap;
      request.recheck_middle = cap != 1;
      CountingObserver observer;
      const auto result = client.Generate(request, &observer);
      ExpectExact(result, Expected(request));
      EXPECT_EQ(observer.tokens, result->tokens);
      EXPECT_EQ(observer.text, result->text);
      EXPECT_LE(result->drafted, cap);
      EXPECT_LE(result->accepted, result->drafted);
      EXPECT_TRUE(codec != "int4" || result->drafted == 0) << "one stream: nothing to draft on";
      drafted += result->drafted;
    }
  }
  EXPECT_GE(drafted, 2);  // how many depends on the machine; two are certain: the cap of 1
}

TEST_F(Nodes, TwoDecodeNodesAtOnce) {
  const PrefillServer server;
  std::vector<std::thread> threads;
  for (int who = 0; who < 2; ++who) {
    threads.emplace_back([&, who] {
      DecodeClient client(server.address());
      for (int i = 0; i < 6; ++i) {
        const GenerateRequest request = RequestFor(RandomPrompt(60 + 40 * i, std::uint64_t(i % 3)),
                                                   i % 2 == 0 ? "nested" : "int8", Coupled(0.7f, std::uint64_t(who)));
        ExpectExact(client.Generate(request), Expected(request));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Nodes, MismatchIsNamed) {
  const PrefillServer server;
  ToyOptions other = LongToy();
  other.seed = 2;
  const Status revision = DecodeClient(server.address(), other).connected();
  EXPECT_EQ(revision.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(revision.message(), HasSubstr("revision differs"));
  other = LongToy();
  other.element_type = ElementType::kF16;
  EXPECT_THAT(DecodeClient(server.address(), other).connected().message(), HasSubstr("dtype differs"));
  DecodeClient good(server.address());
  EXPECT_TRUE(good.Generate(RequestFor(RandomPrompt(10, 1))).ok());
}

TEST_F(Nodes, BadRequestsAreRefusedAndTheNextOneWorks) {
  ToyOptions small = LongToy();
  small.max_tokens = 64;
  const PrefillServer server(small);
  DecodeClient client(server.address());
  GenerateRequest good = RequestFor(RandomPrompt(10, 1));
  const auto refuse = [&](auto change, ErrorCode code, const char* text) {
    GenerateRequest request = good;
    change(request);
    const auto result = client.Generate(request);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), code) << result.status().ToString();
    EXPECT_THAT(result.status().message(), HasSubstr(text));
    EXPECT_TRUE(client.Generate(good).ok());
  };
  using R = GenerateRequest;
  refuse([](R& r) { r.codec = "zip"; }, ErrorCode::kUnsupported, "no codec \"zip\"");
  refuse([](R& r) { r.codec = "nested:anchor=2"; }, ErrorCode::kInvalid, "anchor");
  refuse([](R& r) { r.prompt.clear(); }, ErrorCode::kInvalid, "prompt is empty");
  refuse([](R& r) { r.prompt = RandomPrompt(1024, 1); }, ErrorCode::kLimit, "1024 tokens");
  refuse([](R& r) { r.prompt = RandomPrompt(65, 1); }, ErrorCode::kUnsupported, "the prefill node takes 64");
  refuse([](R& r) { r.prompt[3] = 64; }, ErrorCode::kInvalid, "token 64 is not in the vocabulary");
  refuse([](R& r) { r.prompt[3] = -1; }, ErrorCode::kInvalid, "token -1 is not in the vocabulary");
  refuse([](R& r) { r.sampling.temperature = -1; }, ErrorCode::kInvalid, "temperature");
  refuse([](R& r) { r.max_new_tokens = 0; }, ErrorCode::kInvalid, "max_new_tokens");
  refuse([](R& r) { r.stop = {""}; }, ErrorCode::kInvalid, "stop");
}

TEST_F(Nodes, NobodyThere) {
  std::string address;
  {
    const PrefillServer server;
    address = server.address();
  }
  const Status status = DecodeClient(address).connected();
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("is `lynx prefill` running there?"));
}

TEST_F(Nodes, PortTaken) {
  const PrefillServer server;
  const auto engine = MakeToy();
  PrefillOptions options;
  options.listen = server.address();
  options.kept_caches = 1;
  const auto second = PrefillNode::Start(engine.get(), options);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("choose another port"));
  options.listen = "127.0.0.1:0";
  options.kept_caches = 4;  // with 4 sequences
  EXPECT_THAT(PrefillNode::Start(engine.get(), options).status().message(), HasSubstr("5 sequences"));
}

TEST_F(Nodes, CancelAtAnyMoment) {
  const PrefillServer server;
  LinkOptions link;
  link.to = server.address();
  link.bits_per_second = 4e6;
  const auto emulator = LinkEmulator::Start(link).value();
  DecodeClient client(emulator->listen_address());
  GenerateRequest request = RequestFor(RandomPrompt(257, 11));
  request.reuse = false;
  const auto expected = Expected(request);
  for (int at = 0; at < 40; at += 3) {
    SCOPED_TRACE("cancelled at call " + std::to_string(at));
    std::atomic<bool> cancel = false;
    CountingObserver observer([&](int call) { cancel = cancel || call >= at; });
    const auto result = client.Generate(request, &observer, &cancel);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    ASSERT_LE(result->tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(result->tokens.begin(), result->tokens.end(), expected.begin()));
    EXPECT_EQ(result->exact, result->checked) << result->difference;
  }
  ExpectExact(client.Generate(request), expected);
}

// An error is one line that says something; a success is exact.
void ExpectErrorOrExact(const Result<GenerateResult>& result, const std::vector<Token>& expected) {
  if (result.ok()) return ExpectExact(result, expected);
  EXPECT_THAT(result.status().code(), AnyOf(ErrorCode::kIo, ErrorCode::kInvalid)) << result.status().ToString();
  EXPECT_FALSE(result.status().message().empty());
  EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
}

TEST_F(Nodes, CutConnection) {
  const PrefillServer server;
  GenerateRequest request = RequestFor(RandomPrompt(257, 12));
  const auto expected = Expected(request);
  int failed = 0, succeeded = 0;
  for (const auto direction : {Chopper::kToServer, Chopper::kToClient}) {
    for (const std::size_t limit : {0, 100, 700, 2000, 12'000, 1'000'000}) {
      SCOPED_TRACE("cut after " + std::to_string(limit) + (direction == Chopper::kToServer ? " up" : " down"));
      const Chopper chopper(server.address(), direction, limit);
      DecodeClient client(chopper.address());
      const auto result = client.Generate(request);
      ExpectErrorOrExact(result, expected);
      (result.ok() ? succeeded : failed) += 1;
    }
  }
  EXPECT_GE(failed, 6);
  EXPECT_GE(succeeded, 2);
  DecodeClient client(server.address());
  ExpectExact(client.Generate(request), expected);
}

TEST_F(Nodes, PrefillNodeDiesAndComesBack) {
  auto server = std::make_unique<PrefillServer>();
  const std::string address = server->address();
  LinkOptions link;
  link.to = address;
  link.bits_per_second = 1e6;
  const auto emulator = LinkEmulator::Start(link).value();
  DecodeClient slow(emulator->listen_address());
  GenerateRequest request = RequestFor(RandomPrompt(600, 13));
  CountingObserver observer([&](int call) {
    if (call == 5) server->Stop();
  });
  const auto result = slow.Generate(request, &observer);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.status().message(), AnyOf(HasSubstr("connection"), HasSubstr("stopping")));
  const auto again = slow.Generate(request);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.status().message(), HasSubstr("peer"));
  server = std::make_unique<PrefillServer>(LongToy(), address);
  DecodeClient client(address);
  ExpectExact(client.Generate(request), Expected(request));
}

TEST_F(Nodes, DecodeNodeLeavesInTheMiddle) {
  const PrefillServer server;
  GenerateRequest request = RequestFor(RandomPrompt(600, 14));
  for (int at = 0; at < 4; ++at) {
    DecodeClient leaving(server.address());
    std::atomic<bool> cancel = false;
    CountingObserver observer([&](int call) { cancel = cancel || call >= at; });
    ASSERT_TRUE(leaving.Generate(request, &observer, &cancel).ok());
  }
  DecodeClient client(server.address());
  ExpectExact(client.Generate(request), Expected(request));
}

TEST_F(Nodes, Deadline) {
  const PrefillServer server;
  LinkOptions link;
  link.to = server.address();
  link.bits_per_second = 1e6;
  const auto emulator = LinkEmulator::Start(link).value();
  DecodeClient client(emulator->listen_address());
  GenerateRequest request = RequestFor(RandomPrompt(600, 15));  // 45 kB: 0.36 s
  request.deadline_ms = 100;
  const auto late = client.Generate(request);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), ErrorCode::kLimit);
  EXPECT_THAT(late.status().message(), HasSubstr("deadline"));
  request.deadline_ms = 60'000;
  ExpectExact(client.Generate(request), Expected(request));
}

}  // namespace
}  // namespace lynx
