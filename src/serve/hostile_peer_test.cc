// Peers that keep the transfer's rules and still send what can't be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>

#include "base/float16.h"
#include "net/net_node.h"
#include "serve/node_layout.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

NodeConfig ConfigOf(NodeRole role) {
  NodeConfig config;
  config.name = "hostile";
  config.role = role;
  config.epoch = 1;
  config.layout = LayoutOf(MakeToy(LongToy())->info());
  config.codecs = CodecNames();
  return config;
}

// A prefill node that gives every request this token and no page.
class TokenOnly {
 public:
  explicit TokenOnly(Token token0) {
    NetOptions options;
    options.node = ConfigOf(NodeRole::kPrefill);
    options.listen = "127.0.0.1:0";
    auto started = NetNode::Start(options, [token0](TransferNode& node, TransferEvent event, TimeNs now) {
      const auto* request = std::get_if<RequestArrived>(&event);
      if (request == nullptr) return;
      TransferOffer offer;
      offer.stream_count = 1;
      offer.token_count = std::uint32_t(request->body.tokens.size());
      offer.max_bytes = {1};
      EXPECT_TRUE(node.Offer(request->request, offer, now).ok());
      EXPECT_TRUE(node.SendPrefillDone(request->request, {token0, 0, 0}, now).ok());
      EXPECT_TRUE(node.EndStream(request->request, 0, 0, now).ok());
    });
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    node_ = std::move(started).value();
  }
  const std::string& address() const { return node_->listen_address(); }

 private:
  std::unique_ptr<NetNode> node_;
};

Status GenerateFrom(Token token0) {
  const TokenOnly prefill(token0);
  DecodeClient client(prefill.address());
  GenerateRequest request = RequestFor({1, 2, 3}, "raw");
  request.max_new_tokens = 1;  // nothing would ever be fed to the engine, which checks tokens too
  return client.Generate(request).status();
}

TEST(HostilePeer, TokenZeroOutsideTheVocabularyIsRefused) {
  const Watchdog watchdog(60);
  const int vocabulary = MakeToy(LongToy())->info().vocab_size;
  for (const Token token : {-1, vocabulary, 1000000000, INT32_MIN}) {
    const Status status = GenerateFrom(token);
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << token << ": " << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("not in the vocabulary"));
  }
}

// All of it may come in one read: the request has ended before its offer is looked at.
TEST(HostilePeer, AnEndBeforeThePagesIsNamed) {
  const Watchdog watchdog(60);
  for (int i = 0; i < 20; ++i) {
    const TokenOnly prefill(5);
    DecodeClient client(prefill.address());
    const Status status = client.Generate(RequestFor({1, 2, 3}, "raw")).status();
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("ended after 0 of "));
  }
}

// C6: page streams that are as they should be, of a cache with one value that is not finite, anywhere. The engine does
// not see it, and the next request finds nothing of it.
TEST(HostilePeer, ACacheThatIsNotFiniteIsRefused) {
  const Watchdog watchdog(60);
  constexpr int kTokens = 300;
  const auto toy = MakeToy(LongToy());
  const std::vector<Token> prompt = RandomPrompt(kTokens, 1);
  const auto codec = MakeCodec("raw", toy->info().shape).value();
  CacheBlock block = Prefill(toy.get(), prompt).cache;
  std::atomic<int> requests = 0;
  NetOptions options;
  options.node = ConfigOf(NodeRole::kPrefill);
  options.listen = "127.0.0.1:0";
  const auto prefill =
      NetNode::Start(options, [&](TransferNode& node, TransferEvent event, TimeNs now) {
        const auto* request = std::get_if<RequestArrived>(&event);
        if (request == nullptr) return;
        CacheBlock sent = block;
        const int at = requests++;  // the last request gets the cache as it is
        if (at < 4)
          StoreElement(at % 2 ? NAN : INFINITY, ElementType::kBf16, &sent.Rows(at / 2, KvKind::kValue)[200 * at]);
        TransferOffer offer;
        offer.max_bytes = MostStreamBytes(*codec, toy->info().shape, 0, kTokens);
        offer.token_count = kTokens;
        (void)node.Offer(request->request, offer, now);
        (void)node.SendPrefillDone(request->request, {5, 0, 0}, now);
        for (const auto& [address, streams] : EncodeCache(*codec, sent)) {
          (void)node.PushPage(request->request, 0, 0, address, streams[0], now);
        }
        (void)node.EndStream(request->request, 0, 0, now);
      }).value();
  DecodeClient client(prefill->listen_address());
  const GenerateRequest request = RequestFor(prompt, "raw");
  for (int i = 0; i < 4; ++i) {
    const Status status = client.Generate(request).status();
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("not finite"));
  }
  const auto result = client.Generate(request);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->tokens, DecodePlainly(toy.get(), block, 5, request.max_new_tokens, request.sampling));
}

TEST(HostilePeer, ADecodeNodeThatTakesNoPagesIsToldSo) {
  const Watchdog watchdog(60);
  const PrefillServer server;
  std::promise<Status> end;
  NetOptions options;
  options.node = ConfigOf(NodeRole::kDecode);
  options.node.limits.max_page_stream_bytes = 1;
  const auto decode = NetNode::Start(options, [&end](TransferNode& node, TransferEvent event, TimeNs now) {
    if (const auto* up = std::get_if<PeerUp>(&event)) {
      TransferRequest request;
      request.tokens = {1, 2, 3};
      request.codec = "raw";
      EXPECT_TRUE(node.Request(up->peer, request, now).ok());
    } else if (const auto* finished = std::get_if<RequestFinished>(&event)) {
      end.set_value(finished->status);
    }
  });
  ASSERT_TRUE(decode.ok());
  ASSERT_TRUE((*decode)->Connect(server.address(), 5 * kSecondNs).ok());
  EXPECT_THAT(end.get_future().get().message(), HasSubstr("max_page_stream_bytes"));
}

// Keeps what is shown.
class TextObserver : public GenerateObserver {
 public:
  void OnText(std::string_view more) override { text += more; }
  void OnTokens(const std::vector<Token>&, int) override {}
  void OnWaiting(const TransferProgress&) override {}
  std::string text;
};

TEST(GenerateObserver, IsShownNoStopString) {
  const Watchdog watchdog(60);
  const PrefillServer server;
  DecodeClient client(server.address());
  GenerateRequest request = RequestFor({1, 2, 3});
  TextObserver all;
  const auto whole = client.Generate(request, &all);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_EQ(all.text, whole->text);
  ASSERT_GT(all.text.size(), 8u);

  for (const std::string& stop : {all.text.substr(4, 3), all.text.substr(all.text.size() - 2) + "!"}) {
    request.stop = {stop};
    TextObserver shown;
    const auto result = client.Generate(request, &shown);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(shown.text, result->text);
    EXPECT_THAT(shown.text, Not(HasSubstr(stop)));
    EXPECT_EQ(shown.text, all.text.substr(0, all.text.find(stop)));
  }
}

}  // namespace
}  // namespace lynx
