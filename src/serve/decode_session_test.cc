#include "serve/decode_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/random.h"
#include "serve/three_stream_codec_test.h"
#include "serve/toy_cache_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

// A transfer as it was sent.
struct Sent {
  std::unique_ptr<Engine> engine = MakeToy();
  std::unique_ptr<Codec> codec;
  std::vector<Token> prompt;
  CacheBlock cache;
  EncodedCache encoded;
  Token token0 = 0;
  SamplingOptions sampling;

  Sent(std::unique_ptr<Codec> of, int tokens, std::uint64_t seed, SamplingOptions by = {})
      : codec(std::move(of)), prompt(RandomPrompt(tokens, seed)), cache(engine->info().shape, 0, 0), sampling(by) {
    Prefilled prefilled = Prefill(engine.get(), prompt);
    cache = std::move(prefilled.cache);
    encoded = EncodeCache(*codec, cache);
    token0 = SampleToken(prefilled.logits, sampling, 0);
  }
  int streams() const { return codec->info().stream_count; }
  CacheBlock Quality(int stream) const {
    return DecodeCache(*codec, encoded, engine->info().shape, int(prompt.size()), stream);
  }
  TransferOffer Offer() const {
    TransferOffer offer;
    offer.stream_count = std::uint32_t(streams());
    offer.token_count = std::uint32_t(prompt.size());
    for (int stream = 0; stream < streams(); ++stream) offer.max_bytes.push_back(Bytes(stream));
    return offer;
  }
  std::uint64_t Bytes(int stream) const {
    std::uint64_t bytes = 0;
    for (const auto& [address, page_streams] : encoded) bytes += page_streams[stream]->size();
    return bytes;
  }
  SpeculatorConfig Config(int max_new_tokens = 24) const {
    SpeculatorConfig config;
    config.prompt_tokens = int(prompt.size());
    config.max_drafts = 8;
    config.verify_batch = 5;
    config.max_new_tokens = max_new_tokens;
    config.context_tokens = engine->info().max_tokens;
    return config;
  }
};

std::unique_ptr<Codec> Named(const char* name) { return MakeCodec(name, MakeToy()->info().shape).value(); }

// Does what a session asks for: the codec's and the engine's side, with their state in between, so that a test can put
// anything between the beginning and the end of a piece of work.
class Worksite {
 public:
  Worksite(const Sent& sent, SpeculatorConfig config, bool keep_streams = true)
      : sent_(sent),
        session(sent.engine->info().shape, sent.codec->info(), config, keep_streams),
        staging_(sent.engine->info().shape, 0, int(sent.prompt.size())),
        chooser_(sent.sampling),
        sequence_(sent.engine->Open().value()) {
    EXPECT_TRUE(session.OnOffer(sent.Offer()).ok());
  }
  ~Worksite() { sent_.engine->Close(sequence_); }

  // One page for the codec; false when there is none.
  bool DecodePage() {
    const std::optional<PageJob> job = session.NextPageJob();
    if (!job) return false;
    EXPECT_FALSE(std::holds_alternative<Refine>(running_)) << "the staging block changes while the engine reads it";
    EXPECT_EQ(int(job->streams.size()), job->level + 1);
    std::vector<std::span<const std::byte>> streams;
    for (const SharedBytes& bytes : job->streams) streams.emplace_back(*bytes);
    const Status status = sent_.codec->Decode(streams, staging_.Page(job->address).value(), scratch_);
    EXPECT_TRUE(status.ok()) << status.ToString();
    const Status taken = session.OnPageDecoded(job->address, job->level);
    EXPECT_TRUE(taken.ok()) << taken.ToString();
    return true;
  }

  // Begins the next action; false when there is none.
  bool BeginAction() {
    if (!std::holds_alternative<Wait>(running_)) return false;
    running_ = session.Next();
    if (std::holds_alternative<Wait>(running_)) return false;
    actions.push_back(running_);
    if (const auto* commit = std::get_if<Commit>(&running_)) {
      committed.insert(committed.end(), commit->tokens.begin(), commit->tokens.end());
      running_ = Wait{};
    } else if (std::holds_alternative<Finish>(running_)) {
      running_ = Wait{};
      finished = true;
      return false;
    }
    return true;
  }

  bool EndAction() {
    if (std::holds_alternative<Wait>(running_)) return false;
    const SpeculatorAction action = std::exchange(running_, Wait{});
    const Status status = session.On(std::visit([this](const auto& what) { return Do(what); }, action));
    EXPECT_TRUE(status.ok()) << status.ToString();
    return true;
  }

  // Everything that can be done without the network.
  void Settle() {
    bool moved = true;
    while (moved) {
      moved = false;
      while (DecodePage()) moved = true;
      while (BeginAction() || EndAction()) moved = true;
    }
  }

  std::vector<SpeculatorAction> actions;
  std::vector<Token> committed;
  bool finished = false;

 private:
  SpeculatorEvent Do(const Draft& action) {
    const Token token = chooser_.Draft(RunTokens(sent_.engine.get(), sequence_, {&action.feed, 1}), action.index);
    return Drafted{token, sent_.engine->IsEndOfText(token)};
  }
  SpeculatorEvent Do(const Refine& action) {
    EXPECT_TRUE(SameBytes(staging_, sent_.Quality(action.stream))) << "stream " << action.stream;
    EXPECT_TRUE(sent_.engine->WriteBlock(sequence_, staging_).ok());
    stream_ = action.stream;
    return Refined{action.stream};
  }
  SpeculatorEvent Do(const Rollback& action) {
    EXPECT_TRUE(sent_.engine->Truncate(sequence_, action.length).ok());
    return RolledBack{};
  }
  SpeculatorEvent Do(const Check& action) {
    std::vector<float> rows;
    const StepInput input{sequence_, action.feed, action.drafts.empty() ? Logits::kNone : Logits::kAll};
    EXPECT_TRUE(sent_.engine->Step({&input, 1}, &rows).ok());
    Checked checked = chooser_.Judge(action, rows, stream_);
    checked.end_of_text = checked.has_replacement && sent_.engine->IsEndOfText(checked.replacement);
    return checked;
  }
  SpeculatorEvent Do(const Decode& action) {
    const Token token = chooser_.Plain(RunTokens(sent_.engine.get(), sequence_, {&action.feed, 1}), action.index);
    return Decoded{token, sent_.engine->IsEndOfText(token)};
  }
  template <typename Other>
  SpeculatorEvent Do(const Other&) {
    ADD_FAILURE() << "not an action that runs";
    return RolledBack{};
  }

  const Sent& sent_;

 public:
  DecodeSession session;

 private:
  CacheBlock staging_;
  TokenChooser chooser_;
  SequenceId sequence_;
  int stream_ = -1;
  SpeculatorAction running_ = Wait{};
  std::vector<std::byte> scratch_ = std::vector<std::byte>(1 << 20);
};

struct Arrival {
  int stream = 0;
  PageAddress address;
};

void Shuffle(std::vector<Arrival>* arrivals, Random* random) {
  for (std::size_t i = arrivals->size(); i > 1; --i) std::swap((*arrivals)[i - 1], (*arrivals)[random->Below(i)]);
}

// All page streams in sending order.
std::vector<Arrival> ArrivalsOf(const Sent& sent) {
  std::vector<Arrival> arrivals;
  for (int stream = 0; stream < sent.streams(); ++stream) {
    for (const auto& [address, streams] : sent.encoded) arrivals.push_back({stream, address});
  }
  return arrivals;
}

Status Deliver(const Sent& sent, const Arrival& arrival, DecodeSession* session) {
  return session->OnPage(arrival.stream, arrival.address, sent.encoded.at(arrival.address)[arrival.stream]);
}

// Network, codec and engine in any order, a piece at a time.
void RunRandomly(const Sent& sent, const SpeculatorConfig& config, std::uint64_t seed, Worksite* site) {
  Random random(seed);
  std::vector<Arrival> arrivals = ArrivalsOf(sent);
  if (random.Below(4) != 0) Shuffle(&arrivals, &random);  // several parts: no order between streams
  std::vector<std::size_t> missing(sent.streams(), sent.encoded.size());
  const std::uint64_t network_weight = 1 + random.Below(8), codec_weight = 1 + random.Below(8);
  std::size_t next = 0;
  int completed = 0;
  bool token0_sent = false;
  for (int step = 0; !site->finished && step < 100'000; ++step) {
    const std::uint64_t dice = random.Below(network_weight + codec_weight + 4);
    if (dice < network_weight) {
      if (!token0_sent && (next == arrivals.size() || random.Below(3) == 0)) {
        token0_sent = true;
        ASSERT_TRUE(site->session.OnPrefillDone(sent.token0, sent.engine->IsEndOfText(sent.token0)).ok());
      } else if (next < arrivals.size()) {
        --missing[arrivals[next].stream];
        const Status status = Deliver(sent, arrivals[next++], &site->session);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      // Ends follow PREFILL_DONE.
      while (token0_sent && completed < sent.streams() && missing[completed] == 0) {
        const Status status = site->session.OnStreamCompleted(completed++);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
    } else if (dice < network_weight + codec_weight) {
      site->DecodePage();
    } else if (dice == network_weight + codec_weight) {
      ASSERT_TRUE(site->session.On(DraftWindow{int(random.Below(config.max_drafts + 1))}).ok());
    } else {
      if (!site->BeginAction()) site->EndAction();
    }
  }
  ASSERT_TRUE(site->finished) << "no end after 100,000 steps";
}

TEST(DecodeSession, AnyInterleavingGivesPlainDecoding) {
  int drafted = 0, accepted = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const SamplingOptions sampling = Coupled(seed % 2 == 0 ? 0.0f : 0.9f, seed);
    std::unique_ptr<Codec> codec;
    if (seed % 3 == 0) codec = std::make_unique<ThreeStreamCodec>(seed % 2 == 0 ? 32 : 256);
    if (seed % 3 == 1) codec = Named("nested");
    if (seed % 3 == 2) codec = Named("int8");
    const Sent sent(std::move(codec), 1 + int(random.Below(70)), seed, sampling);
    SpeculatorConfig config = sent.Config(1 + int(random.Below(30)));
    config.max_drafts = int(random.Below(10));
    config.recheck_middle = random.Below(3) != 0;
    Worksite site(sent, config);
    RunRandomly(sent, config, seed, &site);
    EXPECT_EQ(site.committed, DecodePlainly(sent.engine.get(), sent.Quality(sent.streams() - 1), sent.token0,
                                            config.max_new_tokens, sampling));
    drafted += site.session.speculator().drafted_total();
    accepted += site.session.speculator().accepted_total();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(drafted, 100);
  EXPECT_GT(accepted, 20);
  EXPECT_LT(accepted, drafted);
}

TEST(DecodeSession, OrderOfPagesDoesNotMatter) {
  const Sent sent(std::make_unique<ThreeStreamCodec>(), 70, 5);
  std::vector<SpeculatorAction> expected;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Worksite site(sent, sent.Config());
    ASSERT_TRUE(site.session.OnPrefillDone(sent.token0, false).ok());
    std::vector<Arrival> early;  // pages of later streams that came with an earlier one
    std::vector<Arrival> all = ArrivalsOf(sent);
    const std::size_t pages = sent.encoded.size();
    for (int stream = 0; stream < 3; ++stream) {
      std::vector<Arrival> now;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool due = all[i].stream == stream || (all[i].stream > stream && random.Below(4) == 0);
        if (due && seed != 0) now.push_back(all[i]);
        if (seed == 0 && all[i].stream == stream) now.push_back(all[i]);
      }
      for (const Arrival& arrival : now) {
        std::erase_if(all,
                      [&](const Arrival& a) { return a.stream == arrival.stream && a.address == arrival.address; });
      }
      if (seed != 0) Shuffle(&now, &random);
      for (const Arrival& arrival : now) {
        ASSERT_TRUE(Deliver(sent, arrival, &site.session).ok());
        while (random.Below(2) == 0 && site.DecodePage()) continue;
      }
      ASSERT_TRUE(site.session.OnStreamCompleted(stream).ok());
      site.Settle();
    }
    EXPECT_EQ(pages, sent.encoded.size());
    EXPECT_TRUE(site.finished);
    if (seed == 0) expected = site.actions;
    EXPECT_EQ(site.actions, expected);
  }
}

TEST(DecodeSession, LaterStreamsWaitForTheCache) {
  const Sent sent(std::make_unique<ThreeStreamCodec>(), 40, 6);
  Worksite site(sent, sent.Config());
  ASSERT_TRUE(site.session.OnPrefillDone(sent.token0, false).ok());
  for (const Arrival& arrival : ArrivalsOf(sent)) ASSERT_TRUE(Deliver(sent, arrival, &site.session).ok());
  std::size_t jobs = 0;
  while (site.DecodePage()) ++jobs;
  EXPECT_EQ(jobs, sent.encoded.size()) << "pages of stream 1 were decoded before stream 0 is in the cache";
  ASSERT_TRUE(site.session.OnStreamCompleted(0).ok());
  ASSERT_TRUE(site.BeginAction());  // Commit of token 0
  ASSERT_TRUE(site.BeginAction());
  EXPECT_EQ(site.actions.back(), SpeculatorAction(Refine{0}));
  EXPECT_FALSE(site.session.NextPageJob().has_value());
  ASSERT_TRUE(site.EndAction());
  const auto job = site.session.NextPageJob();
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->level, 1);
  EXPECT_EQ(job->streams.size(), 2u);
}

TEST(DecodeSession, TwoStreamsAtOnceSkipTheMiddle) {
  const Sent sent(std::make_unique<ThreeStreamCodec>(), 40, 7);
  Worksite site(sent, sent.Config());
  ASSERT_TRUE(site.session.OnPrefillDone(sent.token0, false).ok());
  for (const Arrival& arrival : ArrivalsOf(sent)) {
    if (arrival.stream == 0) {
      ASSERT_TRUE(Deliver(sent, arrival, &site.session).ok());
    }
  }
  ASSERT_TRUE(site.session.OnStreamCompleted(0).ok());
  while (site.DecodePage()) continue;
  ASSERT_TRUE(site.BeginAction());
  ASSERT_TRUE(site.BeginAction());
  ASSERT_EQ(site.actions.back(), SpeculatorAction(Refine{0}));
  for (const Arrival& arrival : ArrivalsOf(sent)) {
    if (arrival.stream > 0) {
      ASSERT_TRUE(Deliver(sent, arrival, &site.session).ok());
    }
  }
  ASSERT_TRUE(site.session.OnStreamCompleted(1).ok());
  ASSERT_TRUE(site.session.OnStreamCompleted(2).ok());
  EXPECT_TRUE(site.session.AllStreamsReceived());
  site.Settle();
  EXPECT_TRUE(site.finished);
  std::vector<int> refined;
  for (const SpeculatorAction& action : site.actions) {
    if (const auto* refine = std::get_if<Refine>(&action)) refined.push_back(refine->stream);
  }
  EXPECT_EQ(refined, (std::vector<int>{0, 2}));
}

// A stream that the Speculator sees no use in must not hold up those behind it.
TEST(DecodeSession, WithoutDraftsTheLastStreamStillComes) {
  for (const bool three : {false, true}) {
    const Sent sent(three ? std::make_unique<ThreeStreamCodec>() : Named("nested"), 40, 8);
    SpeculatorConfig config = sent.Config();
    config.max_drafts = 0;
    Worksite site(sent, config);
    ASSERT_TRUE(site.session.OnPrefillDone(sent.token0, false).ok());
    const std::vector<Arrival> arrivals = ArrivalsOf(sent);
    for (int stream = 0; stream < sent.streams(); ++stream) {
      for (const Arrival& arrival : arrivals) {
        if (arrival.stream == stream) {
          ASSERT_TRUE(Deliver(sent, arrival, &site.session).ok());
        }
      }
      ASSERT_TRUE(site.session.OnStreamCompleted(stream).ok());
      site.Settle();
    }
    EXPECT_TRUE(site.finished) << (three ? "three streams" : "two streams");
  }
}

TEST(DecodeSession, RefusesOffers) {
  const Sent sent(Named("nested"), 40, 9);
  DecodeSession session(sent.engine->info().shape, sent.codec->info(), sent.Config(), false);
  TransferOffer offer = sent.Offer();
  offer.stream_count = 3;
  EXPECT_EQ(session.OnOffer(offer).code(), ErrorCode::kUnsupported);
  offer = sent.Offer();
  offer.token_count = 41;
  EXPECT_EQ(session.OnOffer(offer).code(), ErrorCode::kCorrupt);
  offer = sent.Offer();
  offer.first_token = 1;
  EXPECT_EQ(session.OnOffer(offer).code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(session.OnOffer(sent.Offer()).ok());
}

// The session takes exactly the pages behind what is there already.
TEST(DecodeSession, TakesTheRestOfAPrompt) {
  const Sent sent(Named("raw"), 300, 9);
  const CacheShape& shape = sent.engine->info().shape;
  DecodeSession session(shape, sent.codec->info(), sent.Config(), false, 260);
  TransferOffer offer = sent.Offer();
  EXPECT_EQ(session.OnOffer(offer).code(), ErrorCode::kCorrupt);
  offer.first_token = 260;
  EXPECT_EQ(session.OnOffer(offer).code(), ErrorCode::kCorrupt);
  offer.token_count = 40;
  EXPECT_TRUE(session.OnOffer(offer).ok());
  for (const auto& [address, streams] : sent.encoded) {
    EXPECT_EQ(session.OnPage(0, address, streams[0]).code(), ErrorCode::kCorrupt);
  }
  const auto pages = PagesOf(shape, 260, 40, sent.codec->info().page_tokens, sent.codec->info().heads_per_page);
  for (const PageAddress& address : pages) {
    EXPECT_TRUE(session.OnPage(0, address, std::make_shared<std::vector<std::byte>>(8)).ok());
  }
  EXPECT_TRUE(session.OnStreamCompleted(0).ok());
}

TEST(DecodeSession, RefusesPagesThatDoNotBelong) {
  const Sent sent(Named("nested"), 300, 10);
  DecodeSession session(sent.engine->info().shape, sent.codec->info(), sent.Config(), false);
  ASSERT_TRUE(session.OnOffer(sent.Offer()).ok());
  const PageAddress first = sent.encoded.begin()->first;
  const SharedBytes bytes = sent.encoded.begin()->second[0];
  ASSERT_TRUE(session.OnPage(0, first, bytes).ok());
  EXPECT_THAT(session.OnPage(0, first, bytes).message(), HasSubstr("came twice"));
  EXPECT_TRUE(session.OnPage(1, first, sent.encoded.begin()->second[1]).ok());
  EXPECT_FALSE(session.OnPage(2, first, bytes).ok());
  EXPECT_FALSE(session.OnPage(-1, first, bytes).ok());
  const auto wrong = [&](auto change) {
    PageAddress address = first;
    change(address);
    return session.OnPage(0, address, bytes).code();
  };
  EXPECT_EQ(wrong([](PageAddress& a) { a.layer = 99; }), ErrorCode::kCorrupt);
  EXPECT_EQ(wrong([](PageAddress& a) { a.layer = -1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(wrong([](PageAddress& a) { a.first_head += 1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(wrong([](PageAddress& a) { a.head_count -= 1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(wrong([](PageAddress& a) { a.first_token += 1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(wrong([](PageAddress& a) { a.token_count -= 1; }), ErrorCode::kCorrupt);
}

TEST(DecodeSession, StreamThatEndsEarlyIsRefused) {
  const Sent sent(Named("nested"), 300, 11);
  DecodeSession session(sent.engine->info().shape, sent.codec->info(), sent.Config(), false);
  std::vector<Arrival> arrivals = ArrivalsOf(sent);
  EXPECT_FALSE(session.OnStreamCompleted(1).ok()) << "out of order";
  for (std::size_t i = 0; i + 1 < sent.encoded.size(); ++i) ASSERT_TRUE(Deliver(sent, arrivals[i], &session).ok());
  const Status status = session.OnStreamCompleted(0);
  EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("ended after"));
}

TEST(DecodeSession, CountsBytes) {
  for (const bool keep : {false, true}) {
    const Sent sent(Named("nested"), 300, 12);
    const std::uint64_t total = sent.Bytes(0) + sent.Bytes(1);
    Worksite site(sent, sent.Config(), keep);
    EXPECT_EQ(site.session.Progress().bytes_left(), total);
    ASSERT_TRUE(site.session.OnPrefillDone(sent.token0, false).ok());
    std::uint64_t received = 0;
    for (const Arrival& arrival : ArrivalsOf(sent)) {
      ASSERT_TRUE(Deliver(sent, arrival, &site.session).ok());
      received += sent.encoded.at(arrival.address)[arrival.stream]->size();
      EXPECT_EQ(site.session.bytes_held(), received);
      EXPECT_EQ(site.session.Progress().bytes_left(), total - received);
    }
    ASSERT_TRUE(site.session.OnStreamCompleted(0).ok());
    ASSERT_TRUE(site.session.OnStreamCompleted(1).ok());
    site.Settle();
    EXPECT_EQ(site.session.Progress().bytes_received, total);
    EXPECT_EQ(site.session.bytes_held(), keep ? total : 0u);
    if (keep) {
      EXPECT_EQ(site.session.Received(), sent.encoded);
    }
    const PageAddress first = sent.encoded.begin()->first;
    EXPECT_FALSE(site.session.OnPage(0, first, sent.encoded.begin()->second[0]).ok()) << "a replay after the end";
  }
}

}  // namespace
}  // namespace lynx
