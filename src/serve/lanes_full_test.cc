// Requests in different phases share the engine's steps, and each gives what it gives alone (acceptance C7).
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "serve/exactness.h"
#include "serve/lane.h"
#include "serve/memory_link_test.h"
#include "serve/shared_step.h"
#include "serve/three_stream_codec_test.h"
#include "serve/toy_cache_test.h"

namespace lynx {
namespace {

constexpr int kSeeds = 1000;

// One request of a seed: what it must give, and its way there.
class LaneUnderTest {
 public:
  LaneUnderTest(Engine* engine, Random* random, CodecThreads* codec_threads)
      : engine_(engine), codec_(std::make_shared<ThreeStreamCodec>()), tokens_(1 + int(random->Below(70))) {
    request_.prompt = RandomPrompt(tokens_, random->Below(1 << 20));
    if (random->Below(2) == 0) request_.sampling = Coupled(0.8f, random->Below(1000));
    request_.max_new_tokens = 1 + int(random->Below(24));
    request_.max_drafts = int(random->Below(20));
    const Prefilled prefilled = Prefill(engine, request_.prompt);
    const Token token0 = SampleToken(prefilled.logits, request_.sampling, 0);
    expected_ = DecodePlainly(engine, prefilled.cache, token0, request_.max_new_tokens, request_.sampling);
    link_ = std::make_unique<MemoryLink>(EncodeCache(*codec_, prefilled.cache), tokens_, token0);

    SpeculatorConfig speculation;
    speculation.prompt_tokens = tokens_;
    speculation.max_drafts = request_.max_drafts;
    speculation.max_new_tokens = request_.max_new_tokens;
    speculation.context_tokens = engine->info().max_tokens;
    speculation.verify_batch = 1 + int(random->Below(8));
    speculation.recheck_middle = random->Below(4) != 0;
    generation_ = std::make_shared<Generation>(engine->info(), codec_, speculation, true, codec_threads, [] {});
    TransferRequest wire;
    wire.tokens = request_.prompt;
    wire.codec = "three";
    link_->Request(wire);
    sequence_ = engine->Open().value();
    lane_ = std::make_unique<Lane>(engine, sequence_, generation_.get(), request_, MonotonicNow(), nullptr, &cancel_);
  }
  ~LaneUnderTest() { engine_->Close(sequence_); }

  Lane* lane() { return lane_.get(); }
  void Move(std::size_t budget) { link_->Move(budget, generation_.get(), *engine_); }
  void Cancel() { cancel_ = true; }

  // After the end: exactly what it gives alone, or the beginning of it when it was cancelled.
  void Check(int* drafted, int* accepted, int* rechecked) {
    const GenerateResult result = lane_->Report();
    *drafted += result.drafted;
    *accepted += result.accepted;
    for (const Span& span : result.timeline) *rechecked += span.phase == Phase::kRecheck ? span.tokens : 0;
    if (result.reason == FinishReason::kStopped) {
      ASSERT_LE(result.tokens.size(), expected_.size());
      EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), expected_.begin()));
      return;
    }
    EXPECT_EQ(result.tokens, expected_);
    if (!lane_->cache_complete()) return;
    const auto exactness =
        CheckExactness(engine_, sequence_, *codec_, generation_->Received(), tokens_, result.tokens, request_.sampling);
    EXPECT_TRUE(exactness.ok() && exactness->exact) << (exactness.ok() ? exactness->difference : "");
  }

 private:
  Engine* const engine_;
  const std::shared_ptr<const ThreeStreamCodec> codec_;
  const int tokens_;
  GenerateRequest request_;
  std::vector<Token> expected_;
  std::unique_ptr<MemoryLink> link_;
  std::shared_ptr<Generation> generation_;
  SequenceId sequence_ = 0;
  std::atomic<bool> cancel_ = false;
  std::unique_ptr<Lane> lane_;
};

struct Totals {
  int steps = 0, shared = 0, drafted = 0, accepted = 0, rechecked = 0;
};

// Turns in which links move, lanes advance and steps are shared by whoever the seed chooses, until all are over.
void RunSeed(std::uint64_t seed, Engine* engine, CodecThreads* codec_threads, Totals* totals) {
  Random random(seed);
  std::vector<std::unique_ptr<LaneUnderTest>> all;
  for (int i = 2 + int(random.Below(3)); i > 0; --i) {
    all.push_back(std::make_unique<LaneUnderTest>(engine, &random, codec_threads));
  }
  SharedStep step(engine);
  const std::size_t budget = 1 + random.Below(4000);
  for (int left = 1; left > 0;) {
    left = 0;
    bool may_import = random.Below(3) != 0;
    std::vector<Lane*> stepping;
    for (auto& one : all) {
      if (random.Below(2) == 0) one->Move(budget);
      if (random.Below(400) == 0) one->Cancel();
      if (one->lane()->finished()) continue;
      ++left;
      if (random.Below(4) == 0) continue;
      const Status status = one->lane()->Advance(&may_import, int(random.Below(30)));
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (one->lane()->step()) stepping.push_back(one->lane());
    }
    for (const Status& status : step.Run(stepping)) ASSERT_TRUE(status.ok()) << status.ToString();
    totals->steps += stepping.empty() ? 0 : 1;
    totals->shared += stepping.size() > 1 ? 1 : 0;
  }
  for (auto& one : all) one->Check(&totals->drafted, &totals->accepted, &totals->rechecked);
}

TEST(Lanes, EachGivesWhatItGivesAlone) {
  ToyOptions toy;
  toy.max_sequences = 6;
  const auto engine = MakeToy(toy);
  CodecThreads codec_threads(1, 1 << 20);
  Totals totals;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunSeed(seed, engine.get(), &codec_threads, &totals);
  }
  EXPECT_GT(totals.shared, totals.steps / 10);
  EXPECT_GT(totals.drafted, kSeeds);
  EXPECT_GT(totals.accepted, kSeeds / 4);
  EXPECT_GT(totals.rechecked, kSeeds / 4);
}

}  // namespace
}  // namespace lynx
