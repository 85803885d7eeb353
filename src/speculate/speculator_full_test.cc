// The guarantee on the toy engine: whatever arrives when, committed tokens, the reason of the end and the cells equal
// plain decoding on the complete cache.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "base/float16.h"
#include "base/random.h"
#include "engine/toy/toy_engine.h"
#include "lynx/engine.h"
#include "lynx/speculate.h"
#include "speculate/chi_square_test.h"
#include "speculate/stop.h"

namespace lynx {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<float> Step(Engine* engine, SequenceId sequence, std::span<const Token> tokens, Logits wanted) {
  std::vector<float> logits;
  const StepInput input{sequence, tokens, wanted};
  const Status status = engine->Step({&input, 1}, &logits);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return logits;
}

Bytes CellBytes(Engine* engine, SequenceId sequence) {
  CacheBlock block(engine->info().shape, 0, engine->Length(sequence));
  EXPECT_TRUE(engine->ReadBlock(sequence, &block).ok());
  Bytes bytes;
  for (int layer = 0; layer < int(block.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = block.Rows(layer, kind);
      bytes.insert(bytes.end(), rows.begin(), rows.end());
    }
  }
  return bytes;
}

// Every value off by up to `noise`, relative and absolute.
CacheBlock Perturbed(const CacheBlock& block, double noise, Random* random) {
  CacheBlock copy = block;
  const ElementType type = copy.shape().element_type;
  for (int layer = 0; layer < int(copy.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = copy.Rows(layer, kind);
      for (std::size_t at = 0; at < rows.size(); at += ElementBytes(type)) {
        const float value = LoadElement(&rows[at], type);
        StoreElement(float(value + noise * (random->Unit() * 2 - 1) * (0.5 + std::abs(value))), type, &rows[at]);
      }
    }
  }
  return copy;
}

// One request: its prompt, its streams (the last one is the complete cache), how tokens are chosen.
struct Request {
  SpeculatorConfig config;
  SamplingOptions sampling;
  Token token0 = 0;
  std::vector<std::string> stops;
  std::vector<CacheBlock> streams;
};

struct Outcome {
  std::vector<Token> tokens;
  FinishReason reason = FinishReason::kStopped;
  std::string text;
  Bytes cells;
};

// Tokens from logits rows, by either method; keeps the rows that drafts were sampled from.
class Chooser {
 public:
  Chooser(const SamplingOptions& options, int vocabulary) : options_(options), vocabulary_(vocabulary) {}

  Token Choose(std::span<const float> logits, int index) {
    if (options_.method == SamplingMethod::kCoupled) return SampleCoupled(logits, options_, index);
    Keep(index, Probabilities(logits));
    return SampleFrom(q_[index], options_.seed, index);
  }
  Checked Judge(const Check& check, std::span<const float> logits, int stream) {
    Checked checked;
    for (std::size_t row = 0; row < logits.size() / vocabulary_; ++row) {
      const int index = check.first_index + int(row);
      const auto here = logits.subspan(row * vocabulary_, vocabulary_);
      const bool judges = row < check.drafts.size();
      Token token;
      if (judges && options_.method == SamplingMethod::kRejection) {
        const auto p = Probabilities(here);
        token = VerifyByRejection(p, q_[index], check.drafts[row], options_.seed, index, stream).token;
        Keep(index, p);
      } else {
        token = Choose(here, index);
      }
      if (judges && token == check.drafts[row]) {
        ++checked.accepted;
        continue;
      }
      checked.has_replacement = true;
      checked.replacement = token;
      break;
    }
    return checked;
  }

 private:
  std::vector<float> Probabilities(std::span<const float> logits) const {
    std::vector<float> row(logits.size());
    TokenProbabilities(logits, options_, row);
    return row;
  }
  void Keep(int index, std::vector<float> row) {
    if (int(q_.size()) <= index) q_.resize(index + 1);
    q_[index] = std::move(row);
  }

  SamplingOptions options_;
  std::size_t vocabulary_;
  std::vector<std::vector<float>> q_;  // by index
};

// What the engine does alone on the complete cache.
Outcome DecodePlainly(Engine* engine, const Request& request) {
  const SequenceId sequence = engine->Open().value();
  EXPECT_TRUE(engine->WriteBlock(sequence, request.streams.back()).ok());
  StopMatcher matcher(request.stops);
  Chooser chooser(request.sampling, engine->info().vocab_size);
  Outcome outcome{{request.token0}};
  for (;;) {
    const Token newest = outcome.tokens.back();
    outcome.text += matcher.Feed(engine->TokenText(newest));
    if (matcher.stopped()) {
      outcome.reason = FinishReason::kStopped;
    } else if (engine->IsEndOfText(newest)) {
      outcome.reason = FinishReason::kEndOfText;
    } else if (int(outcome.tokens.size()) == request.config.max_new_tokens) {
      outcome.reason = FinishReason::kMaxTokens;
    } else if (engine->Length(sequence) == request.config.context_tokens) {
      outcome.reason = FinishReason::kContextFull;
    } else {
      const auto logits = Step(engine, sequence, {&newest, 1}, Logits::kLast);
      outcome.tokens.push_back(chooser.Choose(logits, int(outcome.tokens.size())));
      continue;
    }
    outcome.text += matcher.Flush();
    outcome.cells = CellBytes(engine, sequence);
    engine->Close(sequence);
    return outcome;
  }
}

// The same request through a Speculator; streams, windows and wrong events come at random moments. One Advance is one
// action, so that several runs can share an engine.
class ToyRun {
 public:
  ToyRun(Engine* engine, const Request& request, std::uint64_t seed)
      : engine_(engine),
        request_(request),
        random_(seed),
        eagerness_(0.3 * random_.Unit() * random_.Unit() * random_.Unit()),
        sequence_(engine->Open().value()),
        speculator_(request.config),
        matcher_(request.stops),
        chooser_(request.sampling, engine->info().vocab_size) {}
  ~ToyRun() { engine_->Close(sequence_); }
  ToyRun(const ToyRun&) = delete;
  ToyRun& operator=(const ToyRun&) = delete;

  bool done() const { return done_; }
  const Outcome& outcome() const { return outcome_; }
  const Speculator& speculator() const { return speculator_; }

  void Advance() {
    RandomEvents(false);
    const SpeculatorAction action = speculator_.Next();
    log_.push_back({std::nullopt, action});
    const bool idle = std::holds_alternative<Wait>(action);
    RandomEvents(idle);
    EXPECT_LE(int(speculator_.tokens().size()) - speculator_.committed(), request_.config.max_drafts);
    std::visit([this](const auto& what) { Do(what); }, action);
  }

  // A fresh Speculator gives the same actions for the same events.
  void Replay() const {
    Speculator again(request_.config);
    for (const Entry& entry : log_) {
      if (entry.event) {
        ASSERT_EQ(again.On(*entry.event).ok(), entry.accepted);
      } else {
        ASSERT_TRUE(again.Next() == entry.action);
      }
    }
    ASSERT_EQ(again, speculator_);
  }

 private:
  struct Entry {
    std::optional<SpeculatorEvent> event;
    SpeculatorAction action;
    bool accepted = true;
  };

  void Report(const SpeculatorEvent& event) {
    const Status status = speculator_.On(event);
    EXPECT_TRUE(status.ok()) << status.ToString();
    log_.push_back({event, Wait{}, status.ok()});
  }

  // `must`: the speculator waits, so something has to come.
  void RandomEvents(bool must) {
    if (random_.Below(20) == 0) Report(DraftWindow{int(random_.Below(24))});
    if (random_.Below(10) == 0) ReportWrong();
    if (random_.Unit() < eagerness_ && !token0_given_) GiveToken0();
    while ((must || random_.Unit() < eagerness_) && streams_given_ < request_.config.stream_count) {
      Report(StreamReady{streams_given_++});
      if (random_.Below(4) != 0) break;
    }
    if (must && !token0_given_) GiveToken0();
  }
  void GiveToken0() {
    token0_given_ = true;
    Report(Token0{request_.token0, engine_->IsEndOfText(request_.token0)});
  }
  void ReportWrong() {
    const SpeculatorEvent wrong[] = {StreamReady{streams_given_ + 1},
                                     StreamReady{streams_given_ - 1},
                                     DraftWindow{-1},
                                     Refined{99},
                                     Checked{1000, true},
                                     Checked{-1}};
    const SpeculatorEvent& event = wrong[random_.Below(std::size(wrong))];
    const Speculator before = speculator_;
    EXPECT_EQ(speculator_.On(event).code(), ErrorCode::kInvalid);
    EXPECT_EQ(speculator_, before);
    log_.push_back({event, Wait{}, false});
  }

  void Do(const Wait&) {}
  void Do(const Draft& draft) {
    EXPECT_EQ(engine_->Length(sequence_), request_.config.prompt_tokens + draft.index - 1);
    const Token token = chooser_.Choose(Step(engine_, sequence_, {&draft.feed, 1}, Logits::kLast), draft.index);
    Report(Drafted{token, engine_->IsEndOfText(token)});
  }
  void Do(const Decode& decode) {
    EXPECT_EQ(engine_->Length(sequence_), request_.config.prompt_tokens + decode.index - 1);
    const Token token = chooser_.Choose(Step(engine_, sequence_, {&decode.feed, 1}, Logits::kLast), decode.index);
    Report(Decoded{token, engine_->IsEndOfText(token)});
  }
  void Do(const Refine& refine) {
    EXPECT_TRUE(engine_->Length(sequence_) == 0 || engine_->Length(sequence_) == request_.config.prompt_tokens);
    EXPECT_TRUE(engine_->WriteBlock(sequence_, request_.streams[refine.stream]).ok());
    stream_ = refine.stream;
    Report(Refined{refine.stream});
  }
  void Do(const Rollback& rollback) {
    EXPECT_TRUE(engine_->Truncate(sequence_, rollback.length).ok());
    Report(RolledBack{});
  }
  void Do(const Check& check) {
    EXPECT_LE(int(check.feed.size()), request_.config.verify_batch);
    EXPECT_EQ(engine_->Length(sequence_), request_.config.prompt_tokens + check.first_index - 1);
    EXPECT_EQ(check.commit, stream_ == request_.config.stream_count - 1);
    const auto logits = Step(engine_, sequence_, check.feed, check.drafts.empty() ? Logits::kNone : Logits::kAll);
    Checked checked = chooser_.Judge(check, logits, stream_);
    checked.end_of_text = checked.has_replacement && engine_->IsEndOfText(checked.replacement);
    Report(checked);
  }
  void Do(const Commit& commit) {
    EXPECT_EQ(commit.first_index, committed_);
    committed_ += int(commit.tokens.size());
    for (Token token : commit.tokens) {
      if (matcher_.stopped()) break;
      outcome_.tokens.push_back(token);
      outcome_.text += matcher_.Feed(engine_->TokenText(token));
    }
    if (matcher_.stopped()) Report(StopRequested{});
  }
  void Do(const Finish& finish) {
    outcome_.reason = finish.reason;
    outcome_.text += matcher_.Flush();
    outcome_.cells = CellBytes(engine_, sequence_);
    EXPECT_EQ(committed_, speculator_.committed());
    EXPECT_LE(speculator_.accepted_total(), speculator_.drafted_total());
    EXPECT_TRUE(std::holds_alternative<Finish>(speculator_.Next()));
    done_ = true;
  }

  Engine* engine_;
  const Request& request_;
  Random random_;
  double eagerness_;  // how soon things arrive
  SequenceId sequence_;
  Speculator speculator_;
  StopMatcher matcher_;
  Chooser chooser_;
  Outcome outcome_;
  std::vector<Entry> log_;
  bool token0_given_ = false;
  int streams_given_ = 0;
  int committed_ = 0;
  int stream_ = -1;
  bool done_ = false;
};

void ExpectSame(const Outcome& plain, const ToyRun& run) {
  EXPECT_EQ(run.outcome().tokens, plain.tokens);
  EXPECT_EQ(int(run.outcome().reason), int(plain.reason));
  EXPECT_EQ(run.outcome().text, plain.text);
  // Without a refined last stream (an end at token 0), or stopped inside a batch, the cells are of no use.
  const bool complete = plain.tokens.size() > 1 && plain.reason != FinishReason::kStopped;
  if (complete) {
    EXPECT_EQ(run.outcome().cells, plain.cells);
  }
}

SamplingOptions RandomSampling(Random* random) {
  SamplingOptions sampling;
  sampling.seed = random->Next();
  if (random->Below(3) == 0) return sampling;
  sampling.temperature = 0.2f + float(random->Unit());
  if (random->Below(2)) sampling.top_k = 1 + int(random->Below(20));
  if (random->Below(2)) sampling.top_p = 0.5f + 0.5f * float(random->Unit());
  if (random->Below(2)) sampling.min_p = 0.2f * float(random->Unit());
  return sampling;
}

// Prefills a random prompt, makes streams of rising quality.
Request RandomRequest(Engine* engine, Random* random) {
  Request request;
  SpeculatorConfig& config = request.config;
  config.prompt_tokens = 1 + int(random->Below(24));
  config.stream_count = random->Below(8) == 0 ? 1 : 2 + int(random->Below(3));
  config.max_drafts = random->Below(4) == 0 ? int(random->Below(3)) : int(random->Below(24));
  config.verify_batch = 1 + int(random->Below(8));
  config.max_new_tokens = 1 + int(random->Below(40));
  config.context_tokens =
      std::min(engine->info().max_tokens, config.prompt_tokens + int(random->Below(random->Below(3) == 0 ? 8 : 46)));
  config.recheck_middle = random->Below(4) != 0;
  request.sampling = RandomSampling(random);
  for (int count = random->Below(3) == 0 ? 1 + int(random->Below(12)) : 0; count > 0; --count) {
    std::string stop;
    for (int size = 1 + int(random->Below(4) == 0); size > 0; --size) stop += char(' ' + random->Below(63));
    request.stops.push_back(stop);
  }
  std::vector<Token> prompt(config.prompt_tokens);
  for (Token& token : prompt) token = Token(random->Below(engine->info().vocab_size - 1));
  const SequenceId sequence = engine->Open().value();
  const auto logits = Step(engine, sequence, prompt, Logits::kLast);
  request.token0 = SampleCoupled(logits, request.sampling, 0);
  CacheBlock original(engine->info().shape, 0, config.prompt_tokens);
  EXPECT_TRUE(engine->ReadBlock(sequence, &original).ok());
  engine->Close(sequence);
  // The complete cache is not the original one either: Q_full is what crossed the wire.
  const double scales[] = {0.0, 0.02, 0.1, 0.5, 5.0};
  const double noise = scales[random->Below(5)];
  const CacheBlock complete = Perturbed(original, 0.01, random);
  for (int stream = 0; stream < config.stream_count; ++stream) {
    const int left = config.stream_count - 1 - stream;
    request.streams.push_back(left == 0 ? complete : Perturbed(complete, noise * left / config.stream_count, random));
  }
  return request;
}

ToyOptions RandomEngine(Random* random) {
  return {.seed = random->Below(50),
          .max_tokens = 70,
          .element_type = ElementType(random->Below(3)),
          .key_only_last_layer = random->Below(8) == 0,
          .end_of_text_bias = random->Below(2) ? 3.0f * float(random->Unit()) : -100.0f};
}

TEST(SpeculatorFull, EqualsPlainDecoding) {
  int drafted = 0, accepted = 0, reasons[4] = {};
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const auto engine = std::move(MakeToyEngine(RandomEngine(&random)).value());
    const Request request = RandomRequest(engine.get(), &random);
    const Outcome plain = DecodePlainly(engine.get(), request);
    ToyRun run(engine.get(), request, seed);
    for (int actions = 0; !run.done() && actions < 1000; ++actions) run.Advance();
    ASSERT_TRUE(run.done());
    ExpectSame(plain, run);
    run.Replay();
    if (testing::Test::HasFailure()) break;
    drafted += run.speculator().drafted_total();
    accepted += run.speculator().accepted_total();
    ++reasons[int(plain.reason)];
  }
  std::printf("drafted %d, accepted %d, ends %d %d %d %d\n", drafted, accepted, reasons[0], reasons[1], reasons[2],
              reasons[3]);
  EXPECT_GT(accepted, drafted / 5);
  EXPECT_LT(accepted, drafted * 4 / 5);
  for (int count : reasons) EXPECT_GT(count, 300);
}

// Requests in different phases on one engine, interleaved at random: each as if alone.
TEST(SpeculatorFull, RequestsDoNotDisturbEachOther) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed + 1'000'000);
    const auto engine = std::move(MakeToyEngine(RandomEngine(&random)).value());
    std::vector<Request> requests;
    std::vector<Outcome> plain;
    for (int i = 0; i < 3; ++i) {
      requests.push_back(RandomRequest(engine.get(), &random));
      plain.push_back(DecodePlainly(engine.get(), requests.back()));
    }
    std::vector<std::unique_ptr<ToyRun>> runs;
    for (const Request& request : requests)
      runs.push_back(std::make_unique<ToyRun>(engine.get(), request, random.Next()));
    const auto all_done = [&] { return runs[0]->done() && runs[1]->done() && runs[2]->done(); };
    for (int actions = 0; !all_done() && actions < 3000; ++actions) {
      ToyRun& run = *runs[random.Below(3)];
      if (!run.done()) run.Advance();
    }
    ASSERT_TRUE(all_done());
    for (int i = 0; i < 3; ++i) ExpectSame(plain[i], *runs[i]);
    if (testing::Test::HasFailure()) break;
  }
}

// Rejection sampling promises the distribution: tokens 1 and 2 together, against the engine's own probabilities on the
// complete cache, with re-checks at two middle streams and streams arriving at random moments.
TEST(SpeculatorFull, RejectionHasTheRightDistribution) {
  constexpr int kVocabulary = 12;
  Random random(99);
  const auto engine = std::move(MakeToyEngine({.seed = 3, .vocab = kVocabulary, .max_tokens = 70}).value());
  Request request = RandomRequest(engine.get(), &random);
  request.config = {.prompt_tokens = request.config.prompt_tokens,
                    .stream_count = 4,
                    .max_drafts = 6,
                    .verify_batch = 2,
                    .max_new_tokens = 5,
                    .context_tokens = 70};
  request.stops.clear();
  request.token0 = 1;
  const CacheBlock complete = request.streams.back();
  request.streams = {Perturbed(complete, 1.0, &random), Perturbed(complete, 0.6, &random),
                     Perturbed(complete, 0.3, &random), complete};
  request.sampling = {.temperature = 0.9f, .top_p = 0.97f, .method = SamplingMethod::kRejection};

  std::vector<double> wanted(kVocabulary * kVocabulary);
  const SequenceId sequence = engine->Open().value();
  ASSERT_TRUE(engine->WriteBlock(sequence, complete).ok());
  std::vector<float> first(kVocabulary), second(kVocabulary);
  TokenProbabilities(Step(engine.get(), sequence, {&request.token0, 1}, Logits::kLast), request.sampling, first);
  for (Token token = 0; token < kVocabulary - 1; ++token) {
    TokenProbabilities(Step(engine.get(), sequence, {&token, 1}, Logits::kLast), request.sampling, second);
    for (Token next = 0; next < kVocabulary; ++next) {
      wanted[token * kVocabulary + next] = double(first[token]) * second[next];
    }
    ASSERT_TRUE(engine->Truncate(sequence, request.config.prompt_tokens + 1).ok());
  }
  wanted[(kVocabulary - 1) * kVocabulary] = first[kVocabulary - 1];  // end of text has no successor
  engine->Close(sequence);

  std::vector<int> counts(wanted.size());
  int drafted = 0, accepted = 0;
  for (int seed = 0; seed < 40000; ++seed) {
    request.sampling.seed = seed;
    ToyRun run(engine.get(), request, Mix64(seed));
    while (!run.done()) run.Advance();
    const auto& tokens = run.outcome().tokens;
    ++counts[tokens[1] * kVocabulary + (tokens.size() > 2 ? tokens[2] : 0)];
    drafted += run.speculator().drafted_total();
    accepted += run.speculator().accepted_total();
  }
  std::printf("drafted %d, accepted %d\n", drafted, accepted);
  EXPECT_GT(accepted, drafted / 10);
  EXPECT_LT(accepted, drafted * 9 / 10);
  EXPECT_LT(ChiSquareDeviate(counts, wanted), 4);
}

}  // namespace
}  // namespace lynx
