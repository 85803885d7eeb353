// Random traffic over thousands of steps: many requests of every shape at once, pages in any order and at any time, any
// split, any budget, any window, and every third run with damaged pages (B6, fault 7). Every request that nobody aborts
// ends well with the right bytes, or as corrupt on both sides.

#include <gtest/gtest.h>

#include <map>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

struct OpenRequest {
  RequestId id;
  TestTransfer transfer;
  std::vector<std::tuple<int, int, int>> todo;  // part, stream, page; page -1: EndStream
  bool done_sent = false;
};

class RandomTraffic {
 public:
  explicit RandomTraffic(std::uint64_t seed)
      : random_(seed),
        damages_(seed % 3 == 0),
        tiny_(seed % 5 < 2),
        pair_(TestConfig(NodeRole::kPrefill), Config(seed)) {
    pair_.Run();
  }

  void Run() {
    for (int step = 0; step < 400 || !open_.empty() || pair_.decode.OpenRequests() > 0; ++step) {
      ASSERT_LT(step, 200000) << "stuck";
      if (step < 400 && random_.Below(8) == 0 && pair_.decode.OpenRequests() < 20) Ask();
      if (random_.Below(200) == 0) Abort();
      if (!open_.empty()) Work(&open_[random_.Below(open_.size())]);
      Move(&pair_.prefill, pair_.at_prefill, &pair_.decode, pair_.at_decode, &to_decode_);
      Move(&pair_.decode, pair_.at_decode, &pair_.prefill, pair_.at_prefill, &to_prefill_);
      Take();
    }
    for (int i = 0; i < 10; ++i) {
      Move(&pair_.decode, pair_.at_decode, &pair_.prefill, pair_.at_prefill, &to_prefill_, true);
      Move(&pair_.prefill, pair_.at_prefill, &pair_.decode, pair_.at_decode, &to_decode_, true);
      Take();
    }
    EXPECT_EQ(pair_.prefill.OpenRequests(), 0u);
    EXPECT_EQ(at_prefill_ended_, asked_);
    EXPECT_EQ(at_decode_ended_, asked_);
    EXPECT_GT(well_, 0);
    const PeerStats decode = pair_.decode.Stats(pair_.at_decode);
    EXPECT_LE(decode.naks, std::uint64_t(damaged_));
    EXPECT_EQ(decode.naks > 0 && !tiny_, damages_ && !tiny_);
  }
  int well() const { return well_; }
  int corrupt() const { return corrupt_; }

 private:
  static NodeConfig Config(std::uint64_t seed) {
    constexpr std::uint64_t kWindows[] = {1, 37, 1000, 5000, 0};
    NodeConfig config = TestConfig(NodeRole::kDecode);
    config.window_bytes = kWindows[seed % 5];
    config.pull = seed % 7 != 0;
    config.order = seed % 11 == 0 ? SendOrder::kFifo : SendOrder::kStrict;
    return config;
  }

  void Ask() {
    TransferRequest request = TestRequest();
    request.anchor_first = random_.Below(3) != 0;
    ASSERT_TRUE(pair_.decode.Request(pair_.at_decode, request, pair_.now).ok());
    ++asked_;
  }

  void Abort() {
    if (asked_ == 0) return;
    const std::uint64_t id = 1 + random_.Below(std::uint64_t(asked_));
    const bool by_prefill = random_.Below(2) == 0;
    TransferNode& node = by_prefill ? pair_.prefill : pair_.decode;
    node.Abort({by_prefill ? pair_.at_prefill : pair_.at_decode, id}, EngineError("stop"), pair_.now);
  }

  // Any bit of the payload of one page frame in 8; in 3,000 where a window of a few bytes makes hundreds of a page.
  void Damage(std::span<std::byte> frames) {
    while (!frames.empty()) {
      const auto payload_bytes = LoadLittle<std::uint32_t>(frames.data() + 24);
      if (FrameType(frames[5]) == FrameType::kPage && random_.Below(tiny_ ? 3000 : 8) == 0) {
        frames[kFrameHeaderBytes + random_.Below(payload_bytes)] ^= std::byte(1 << random_.Below(8));
        ++damaged_;
      }
      frames = frames.subspan(kFrameHeaderBytes + payload_bytes);
    }
  }

  // One step of a prefill session.
  void Work(OpenRequest* request) {
    if (!request->done_sent && random_.Below(10) == 0) {
      request->done_sent = true;
      (void)pair_.prefill.SendPrefillDone(request->id, {}, pair_.now);
    }
    if (request->todo.empty()) return;
    const auto [part, stream, page] = request->todo.front();
    request->todo.erase(request->todo.begin());
    const TestTransfer& t = request->transfer;
    const Status status = page < 0 ? pair_.prefill.EndStream(request->id, part, stream, pair_.now)
                                   : pair_.prefill.PushPage(request->id, part, stream, t.Address(part, page),
                                                            t.Bytes(part, stream, page), pair_.now);
    EXPECT_TRUE(status.ok() || status.message() == "request is not open") << status.ToString();
  }

  void Move(TransferNode* from, PeerId at_from, TransferNode* to, PeerId at_to, std::vector<std::byte>* way,
            bool all = false) {
    pair_.now += 1000;
    const std::size_t begin = way->size();
    from->Output(at_from, all ? 1 << 20 : random_.Below(2000), pair_.now, way);
    if (damages_) Damage(std::span(*way).subspan(begin));
    const std::size_t take = all ? way->size() : random_.Below(way->size() + 1);
    to->Feed(at_to, std::span(*way).first(take), pair_.now);
    way->erase(way->begin(), way->begin() + std::ptrdiff_t(take));
  }

  void Take() {
    while (auto event = pair_.prefill.Poll()) {
      if (const auto* arrived = std::get_if<RequestArrived>(&*event)) Open(arrived->request);
      if (const auto* finished = std::get_if<RequestFinished>(&*event)) {
        std::erase_if(open_, [&](const OpenRequest& r) { return r.id == finished->request; });
        ++at_prefill_ended_;
      }
      ASSERT_FALSE(std::holds_alternative<PeerDown>(*event)) << Describe(*event);
    }
    while (auto event = pair_.decode.Poll()) {
      ASSERT_FALSE(std::holds_alternative<PeerDown>(*event)) << Describe(*event);
      if (const auto* offer = std::get_if<OfferArrived>(&*event))
        (void)pair_.decode.AcceptOffer(offer->request, pair_.now);
      if (const auto* page = std::get_if<PageArrived>(&*event)) {
        const TestTransfer& t = transfers_[page->request.id];
        ASSERT_EQ(*page->bytes, *t.Bytes(page->part, page->stream, page->address.layer));
        pages_[page->request.id] += 1;
      }
      if (const auto* finished = std::get_if<RequestFinished>(&*event)) {
        ++at_decode_ended_;
        corrupt_ += finished->status.code() == ErrorCode::kCorrupt;
        if (!finished->status.ok()) continue;
        ++well_;
        const TestTransfer& t = transfers_[finished->request.id];
        EXPECT_EQ(pages_[finished->request.id], t.streams * t.parts * t.pages);
      }
    }
  }

  void Open(RequestId id) {
    OpenRequest request{.id = id};
    request.transfer = {.streams = int(1 + random_.Below(4)),
                        .parts = int(1 + random_.Below(3)),
                        .pages = int(random_.Below(4)),
                        .page_bytes = std::size_t(1 + random_.Below(400))};
    transfers_[id.id] = request.transfer;
    if (!pair_.prefill.Offer(id, request.transfer.Offer(), pair_.now).ok()) return;
    for (int part = 0; part < request.transfer.parts; ++part) {
      for (int stream = 0; stream < request.transfer.streams; ++stream) {
        for (int page = 0; page < request.transfer.pages; ++page) request.todo.emplace_back(part, stream, page);
      }
    }
    for (std::size_t i = request.todo.size(); i > 1; --i)
      std::swap(request.todo[i - 1], request.todo[random_.Below(i)]);
    for (int part = 0; part < request.transfer.parts; ++part) {
      for (int stream = 0; stream < request.transfer.streams; ++stream) request.todo.emplace_back(part, stream, -1);
    }
    open_.push_back(std::move(request));
  }

  Random random_;
  const bool damages_, tiny_;
  Loopback pair_;
  std::vector<std::byte> to_decode_, to_prefill_;
  std::vector<OpenRequest> open_;
  std::map<std::uint64_t, TestTransfer> transfers_;
  std::map<std::uint64_t, int> pages_;
  int asked_ = 0, at_prefill_ended_ = 0, at_decode_ended_ = 0, well_ = 0, corrupt_ = 0, damaged_ = 0;
};

TEST(RandomTraffic, EndsWellForEverySeed) {
  int well = 0, corrupt = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomTraffic traffic(seed);
    traffic.Run();
    well += traffic.well();
    corrupt += traffic.corrupt();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_LT(10 * corrupt, well);
  EXPECT_GT(corrupt, 0);
}

}  // namespace
}  // namespace lynx
