// P4: what a decode node holds while its prefill nodes do their worst.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "net/net_node.h"
#include "serve/live_heap_test.h"
#include "serve/node_layout.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

constexpr int kRunning = 6, kWaiting = 12;
constexpr int kPromptTokens = 1000;
constexpr const char* kCodec = "lynx";
// Frames, queues and buffers of 33 connections. What is promised is 64 MiB for those and for what the allocator wastes.
constexpr std::int64_t kSlack = 16 << 20;

ToyOptions WideToy() {
  ToyOptions toy = LongToy();
  toy.layers = 8;
  toy.heads = toy.kv_heads = 4;
  toy.head_dim = 64;
  toy.max_sequences = kRunning + 1;
  return toy;
}

NodeConfig PrefillConfig() {
  NodeConfig config;
  config.role = NodeRole::kPrefill;
  config.epoch = 7;
  config.layout = LayoutOf(MakeToy(WideToy())->info());
  config.codecs = CodecNames();
  return config;
}

// Keeps the transfer's rules and gives the most that they allow: noise, which codecs can only send as it is, all of it
// but one page of the anchor, and no end. With a factor: offers and sends that many times what the codec can need.
class Greedy {
 public:
  explicit Greedy(int factor) : factor_(factor) {
    TheNoise();
    NetOptions options;
    options.node = PrefillConfig();
    options.listen = "127.0.0.1:0";
    net_ = NetNode::Start(options, [this](TransferNode& node, TransferEvent event, TimeNs now) {
             if (const auto* request = std::get_if<RequestArrived>(&event)) Answer(node, *request, now);
           }).value();
  }
  const std::string& address() const { return net_->listen_address(); }

 private:
  void Answer(TransferNode& node, const RequestArrived& request, TimeNs now) const {
    const Noise& noise = TheNoise();
    TransferOffer offer;
    offer.max_bytes = MostStreamBytes(*noise.codec, noise.shape, 0, kPromptTokens);
    if (factor_ > 1) std::ranges::fill(offer.max_bytes, std::uint64_t(factor_) * offer.max_bytes[0]);
    offer.stream_count = std::uint32_t(offer.max_bytes.size());
    offer.token_count = kPromptTokens;
    (void)node.Offer(request.request, offer, now);
    (void)node.SendPrefillDone(request.request, {5, 0, 0}, now);
    for (const auto& [address, streams] : noise.pages) {
      const bool last = address == noise.pages.rbegin()->first;
      if (factor_ == 1 && !last) (void)node.PushPage(request.request, 0, 0, address, streams[0], now);
      (void)node.PushPage(request.request, 0, 1, address, factor_ == 1 ? streams[1] : noise.long_stream, now);
    }
  }

  // Made once: what peers hold does not grow.
  struct Noise {
    Noise() {
      CacheBlock block(shape, 0, kPromptTokens);
      Random random(1);
      for (int layer = 0; layer < int(shape.layers.size()); ++layer) {
        for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
          for (std::byte& byte : block.Rows(layer, kind)) byte = std::byte(random.Below(256));
        }
      }
      for (auto& [address, streams] : EncodeCache(*codec, block)) pages[address].assign(streams.begin(), streams.end());
    }
    const CacheShape shape = MakeToy(WideToy())->info().shape;
    const std::unique_ptr<Codec> codec = MakeCodec(kCodec, shape).value();
    std::map<PageAddress, std::vector<SharedBytes>> pages;
    const SharedBytes long_stream = std::make_shared<const std::vector<std::byte>>(2 << 20, std::byte{0x5a});
  };
  static const Noise& TheNoise() {
    static const Noise noise;
    return noise;
  }

  const int factor_;
  std::unique_ptr<NetNode> net_;
};

enum Way { kGarbage, kGarbageAfterHello, kSilent, kHalfFrame, kUnknownFrames, kPings, kDamagedPages, kWays };

// Serves one connection after the other in one bad way, and reads no more than that way needs.
class BadPeer {
 public:
  explicit BadPeer(Way way) : way_(way) {
    AddSome();
    out_.clear();  // from now on it needs no more memory
    thread_ = std::thread([this] {
      while (!stopping_) {
        const Fd socket = WaitReadable(listener_, 20 * kMillisecondNs) ? AcceptFrom(listener_, {}) : Fd();
        if (socket.valid()) Serve(socket);
      }
    });
  }
  ~BadPeer() {
    stopping_ = true;
    thread_.join();
  }
  std::string address() const { return LocalAddress(listener_); }

 private:
  FrameHeader Header(FrameType type) const {
    FrameHeader header;
    header.type = type;
    header.epoch_tag = EpochTag(config_.epoch);
    return header;
  }
  template <typename Payload>
  void Add(FrameHeader header, const Payload& payload) {
    std::vector<std::byte> bytes;
    Encode(payload, &bytes);
    AppendFrame(header, bytes, &out_);
  }
  // What was added; until it is sent or the connection is over: false.
  bool Send(const Fd& socket) {
    std::span<const std::byte> left = out_;
    while (!left.empty() && !stopping_) {
      const Result<std::size_t> sent = WriteSome(socket, left);
      if (!sent.ok()) return false;
      left = left.subspan(*sent);
      if (*sent == 0) WaitWritable(socket, 20 * kMillisecondNs);
      if (*sent == 0 && PeerLeft(socket)) return false;
    }
    out_.clear();
    return left.empty();
  }
  void AddHello() {
    Hello hello;
    hello.role = config_.role;
    hello.epoch = config_.epoch;
    hello.layout = config_.layout;
    hello.codecs = config_.codecs;
    Add(Header(FrameType::kHello), hello);
  }

  void Serve(const Fd& socket) {
    out_.clear();
    if (way_ != kGarbage) AddHello();
    if (!Send(socket)) return;
    if (way_ == kDamagedPages) return Damage(socket);
    do {
      AddSome();
      if (way_ == kSilent || way_ == kHalfFrame) break;
    } while (Send(socket));
    Send(socket);
    while (!stopping_ && !PeerLeft(socket)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void AddSome() {
    FrameHeader header = Header(FrameType::kPage);
    switch (way_) {
      case kHalfFrame:
        header.request = 1;
        AppendFrame(header, kMebibyte, &out_);
        out_.pop_back();
        return;
      case kUnknownFrames:
        header.type = FrameType(200);
        header.critical = false;
        return AppendFrame(header, kMebibyte, &out_);
      case kPings:
        for (int i = 0; i < 1000; ++i) Add(Header(FrameType::kPing), Ping{i});
        return;
      case kGarbage:
      case kGarbageAfterHello:
        for (int i = 0; i < 1 << 16; ++i) out_.push_back(std::byte(random_.Below(256)));
        return;
      default:
        return;
    }
  }

  // Asked for a prompt, it sends as many damaged pages of one byte as were granted, and does not read that each is
  // missed.
  void Damage(const Fd& socket) {
    FrameReader reader({1 << 20, 1 << 18});
    std::vector<std::byte> in(1 << 16);
    while (!stopping_ && !PeerLeft(socket)) {
      if (!WaitReadable(socket, 20 * kMillisecondNs)) continue;
      const Result<std::size_t> count = ReadSome(socket, in);
      if (!count.ok()) return;
      for (std::span<const std::byte> bytes = std::span(in).first(*count); !bytes.empty();) {
        const auto frame = reader.Next(&bytes);
        if (!frame.ok()) return;
        if (!*frame) continue;
        FrameHeader header = Header(FrameType::kOffer);
        header.request = (*frame)->header.request;
        if ((*frame)->header.type == FrameType::kRequest) {
          const auto request = ParseRequest((*frame)->payload, 1 << 18).value();
          TransferOffer offer;
          offer.max_bytes = MostStreamBytes(*MakeCodec(request.codec, shape_).value(), shape_, 0, kPromptTokens);
          offer.stream_count = std::uint32_t(offer.max_bytes.size());
          offer.token_count = kPromptTokens;
          Add(header, offer);
          header.type = FrameType::kAvailable;
          Add(header, CumulativeBytes{offer.max_bytes[0]});
        } else if ((*frame)->header.type == FrameType::kGrant) {
          header.type = FrameType::kPage;
          for (std::uint64_t i = ParseStreamGrant((*frame)->payload)->bytes; i > 0; --i) {
            AppendFrame(header, std::vector<std::byte>(kPageHeaderBytes + 1), &out_);
            out_.back() ^= std::byte{1};
            if (out_.size() > 1 << 16 && !Send(socket)) return;
          }
        }
      }
      if (!Send(socket)) return;
    }
  }

  inline static const std::vector<std::byte> kMebibyte{1 << 20};
  const Way way_;
  const NodeConfig config_ = PrefillConfig();
  const CacheShape shape_ = MakeToy(WideToy())->info().shape;
  const Fd listener_ = ListenOn("127.0.0.1:0").value();
  Random random_{3};
  std::vector<std::byte> out_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// What docs/operating.md says that the requests of a decode node can hold, the engine's own cache aside: nothing is
// parked here.
std::int64_t Pool(const CacheShape& shape, const Codec& codec) {
  const auto streams = MostStreamBytes(codec, shape, 0, kPromptTokens);
  const std::int64_t staging = shape.BytesPerToken() * kPromptTokens;
  return kRunning * std::accumulate(streams.begin(), streams.end(), staging);
}

TEST(HostileMemory, StaysWithinThePool) {
  const Watchdog watchdog(120);
  const auto engine = MakeToy(WideToy());
  std::vector<std::unique_ptr<Greedy>> greedy;
  std::vector<std::unique_ptr<BadPeer>> bad;
  DecodeOptions options;
  options.max_running = kRunning;
  options.max_waiting = kWaiting;
  options.anchors_s = 1e9;
  options.codec_threads = 2;
  for (int i = 0; i < 12; ++i) greedy.push_back(std::make_unique<Greedy>(i % 2 == 0 ? 20 : 1));
  for (int i = 0; i < 3 * kWays; ++i) bad.push_back(std::make_unique<BadPeer>(Way(i % kWays)));
  for (const auto& peer : greedy) options.prefill.addresses.push_back(peer->address());
  for (const auto& peer : bad) options.prefill.addresses.push_back(peer->address());

  const std::int64_t start = LiveHeapBytes();
  ForgetHeapPeak();
  const auto node = DecodeNode::Start(engine.get(), options).value();
  ASSERT_TRUE(node->AwaitPrefill().ok());
  std::atomic<int> answered = 0, refused = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < kWaiting; ++i) {  // few enough for the queue
    clients.emplace_back([&, i] {
      GenerateRequest request = RequestFor(RandomPrompt(kPromptTokens, std::uint64_t(i)), kCodec);
      request.deadline_ms = 3000;
      for (const TimeNs end = MonotonicNow() + 7 * kSecondNs; MonotonicNow() < end;) {
        const auto result = node->Generate(request, nullptr, nullptr);
        result.ok() ? ++answered : ++refused;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 0);
  EXPECT_GE(refused, kWaiting);

  const std::int64_t pool = Pool(engine->info().shape, *MakeCodec("lynx", engine->info().shape).value());
  const std::int64_t most = PeakHeapBytes() - start;
  std::printf("at most %lld MiB, the pool has %lld; %d requests\n", static_cast<long long>(most >> 20),
              static_cast<long long>(pool >> 20), refused.load());
  EXPECT_LE(most, pool + kSlack);
  EXPECT_GE(most, pool / 3) << "nobody tried";
  EXPECT_LT(LiveHeapBytes() - start, kSlack);
}

}  // namespace
}  // namespace lynx
