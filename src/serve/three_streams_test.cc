// A transfer of three streams in two parts, from TransferNode to committed tokens: nothing on the way knows that there
// are usually two.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <string>
#include <thread>

#include "base/status_macros.h"
#include "serve/exactness.h"
#include "serve/generation.h"
#include "serve/lane.h"
#include "serve/memory_link_test.h"
#include "serve/shared_step.h"
#include "serve/three_stream_codec_test.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

// A memory link with a thread of its own: so many bytes per millisecond towards the decode node.
class TimedLink {
 public:
  TimedLink(EncodedCache encoded, int tokens, Token token0, std::size_t bytes_per_ms)
      : link_(std::move(encoded), tokens, token0), bytes_per_ms_(bytes_per_ms) {}
  ~TimedLink() { Stop(); }

  void Start(const TransferRequest& request, Generation* generation, const Engine& engine) {
    link_.Request(request);
    thread_ = std::thread([this, generation, &engine] {
      while (!stopping_) {
        link_.Move(bytes_per_ms_, generation, engine);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  MemoryLink link_;
  const std::size_t bytes_per_ms_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

struct Case {
  int tokens = 100;
  std::size_t bytes_per_ms = 1000;
  int max_drafts = 16;
  bool recheck_middle = true;
  SamplingOptions sampling;
};

Status RunAlone(Engine* engine, Lane* lane) {
  SharedStep step(engine);
  while (!lane->finished()) {
    bool may_import = true;
    LYNX_RETURN_IF_ERROR(lane->Advance(&may_import, INT_MAX));
    if (lane->step()) LYNX_RETURN_IF_ERROR(step.Run(std::span(&lane, 1)).front());
  }
  return Ok();
}

GenerateResult Generate(const Case& with) {
  Watchdog watchdog(60);
  const auto engine = MakeToy(LongToy());
  const auto codec = std::make_shared<ThreeStreamCodec>();
  GenerateRequest request = RequestFor(RandomPrompt(with.tokens, std::uint64_t(with.tokens)), "three", with.sampling);
  const Prefilled prefilled = Prefill(engine.get(), request.prompt);
  const EncodedCache encoded = EncodeCache(*codec, prefilled.cache);
  const Token token0 = SampleToken(prefilled.logits, request.sampling, 0);
  // With all three streams the cache is the original.
  const auto expected = DecodePlainly(engine.get(), prefilled.cache, token0, request.max_new_tokens, request.sampling);

  SpeculatorConfig speculation;
  speculation.prompt_tokens = with.tokens;
  speculation.max_drafts = request.max_drafts = with.max_drafts;
  speculation.max_new_tokens = request.max_new_tokens;
  speculation.context_tokens = engine->info().max_tokens;
  speculation.recheck_middle = with.recheck_middle;
  CodecThreads codec_threads(1, 1000);
  const auto generation = std::make_shared<Generation>(engine->info(), codec, speculation, true, &codec_threads, [] {});
  TimedLink link(encoded, with.tokens, token0, with.bytes_per_ms);
  TransferRequest wire;
  wire.tokens = request.prompt;
  wire.codec = "three";
  link.Start(wire, generation.get(), *engine);
  const SequenceId sequence = engine->Open().value();
  Lane lane(engine.get(), sequence, generation.get(), request, MonotonicNow(), nullptr, nullptr);
  const Status status = RunAlone(engine.get(), &lane);
  link.Stop();
  EXPECT_TRUE(status.ok()) << status.ToString();
  if (!status.ok()) return {};
  GenerateResult result = lane.Report();
  EXPECT_EQ(result.tokens, expected);
  EXPECT_TRUE(lane.cache_complete());
  if (!lane.cache_complete()) return {};
  EXPECT_EQ(generation->Received().size(), encoded.size());
  const auto exactness = CheckExactness(engine.get(), sequence, *codec, generation->Received(), with.tokens,
                                        result.tokens, request.sampling);
  EXPECT_TRUE(exactness.ok() && exactness->exact);
  return result;
}

TEST(ThreeStreams, DraftRecheckVerify) {
  int drafted = 0, accepted = 0, rechecked = 0;
  for (const int tokens : {1, 31, 33, 100, 300}) {
    for (const SamplingOptions& sampling : {SamplingOptions{}, Coupled(0.8f, 3)}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens, temperature " + std::to_string(sampling.temperature));
      const GenerateResult result = Generate({.tokens = tokens, .sampling = sampling});
      drafted += result.drafted;
      accepted += result.accepted;
      for (const Span& span : result.timeline) rechecked += span.phase == Phase::kRecheck ? span.tokens : 0;
    }
  }
  EXPECT_GT(drafted, 10);
  EXPECT_GT(rechecked, 0);
  EXPECT_GT(accepted, 0);
}

TEST(ThreeStreams, AllAtOnce) {
  for (int i = 0; i < 10; ++i) Generate({.tokens = 33, .bytes_per_ms = 1 << 20});
}

TEST(ThreeStreams, NoDraftsAndNoRecheck) {
  EXPECT_EQ(Generate({.max_drafts = 0}).drafted, 0);
  EXPECT_EQ(Generate({.max_drafts = 1, .recheck_middle = false}).drafted, 1);
  Generate({.bytes_per_ms = 1 << 20, .recheck_middle = false});
  Generate({.recheck_middle = false});
}

}  // namespace
}  // namespace lynx
