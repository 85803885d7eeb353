// The check that proves a run must itself be able to fail.
#include "serve/exactness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "serve/toy_cache_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

constexpr int kPromptTokens = 70;

class ExactnessTest : public ::testing::Test {
 protected:
  ExactnessTest() {
    const auto prompt = RandomPrompt(kPromptTokens, 1);
    const Prefilled prefilled = Prefill(engine_.get(), prompt);
    codec_ = MakeCodec("nested", engine_->info().shape).value();
    streams_ = EncodeCache(*codec_, prefilled.cache);
    const CacheBlock full = DecodeCache(*codec_, streams_, engine_->info().shape, kPromptTokens, 1);
    tokens_ = DecodePlainly(engine_.get(), full, SampleToken(prefilled.logits, {}, 0), 20, {});
    sequence_ = engine_->Open().value();
    EXPECT_TRUE(engine_->WriteBlock(sequence_, full).ok());
    RunTokens(engine_.get(), sequence_, std::span(tokens_).first(tokens_.size() - 1));
  }
  Exactness Check(const SamplingOptions& sampling = {}) {
    auto result = CheckExactness(engine_.get(), sequence_, *codec_, streams_, kPromptTokens, tokens_, sampling);
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return result.ok() ? *result : Exactness{};
  }

  std::unique_ptr<Engine> engine_ = MakeToy();
  std::unique_ptr<Codec> codec_;
  EncodedCache streams_;
  std::vector<Token> tokens_;
  SequenceId sequence_ = 0;
};

TEST_F(ExactnessTest, AnExactRunPasses) {
  const Exactness exactness = Check();
  EXPECT_TRUE(exactness.exact) << exactness.difference;
  EXPECT_EQ(exactness.difference, "");
}

TEST_F(ExactnessTest, OneChangedBitOfTheCacheIsFound) {
  const CacheBlock good = ReadCache(engine_.get(), sequence_, kPromptTokens);
  Random random(5);
  for (int layer = 0; layer < 2; ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      CacheBlock bad = good;
      const auto rows = bad.Rows(layer, kind);
      const std::size_t at = 2 * random.Below(rows.size() / 2);
      rows[at] ^= std::byte{1};  // the lowest mantissa bit
      ASSERT_TRUE(engine_->WriteBlock(sequence_, bad).ok());
      const Exactness exactness = Check();
      EXPECT_FALSE(exactness.exact) << "byte " << at;
      EXPECT_THAT(exactness.difference,
                  HasSubstr("layer " + std::to_string(layer) + (kind == KvKind::kKey ? " K" : " V")));
    }
  }
  ASSERT_TRUE(engine_->WriteBlock(sequence_, good).ok());
  EXPECT_TRUE(Check().exact);
}

TEST_F(ExactnessTest, AnchorQualityIsFound) {
  const CacheBlock anchor = DecodeCache(*codec_, streams_, engine_->info().shape, kPromptTokens, 0);
  ASSERT_TRUE(engine_->WriteBlock(sequence_, anchor).ok());
  EXPECT_FALSE(Check().exact);
}

TEST_F(ExactnessTest, AnotherTokenIsFound) {
  for (const std::size_t at : {std::size_t{1}, std::size_t{7}, tokens_.size() - 1}) {
    const Token good = tokens_[at];
    tokens_[at] = (good + 1) % 63;
    const Exactness exactness = Check();
    EXPECT_FALSE(exactness.exact) << "token " << at;
    EXPECT_THAT(exactness.difference, HasSubstr("committed tokens:"));
    EXPECT_THAT(exactness.difference, HasSubstr("sequential tokens:"));
    tokens_[at] = good;
  }
  SamplingOptions rejection;
  rejection.method = SamplingMethod::kRejection;
  tokens_[3] = (tokens_[3] + 1) % 63;
  EXPECT_TRUE(Check(rejection).exact) << "only the distribution is promised";
}

TEST_F(ExactnessTest, DamagedStreamsAreAnError) {
  auto damaged = *streams_.begin()->second[1];
  damaged.back() ^= std::byte{1};
  streams_.begin()->second[1] = std::make_shared<std::vector<std::byte>>(damaged);
  EXPECT_EQ(CheckExactness(engine_.get(), sequence_, *codec_, streams_, kPromptTokens, tokens_, {}).status().code(),
            ErrorCode::kCorrupt);
}

TEST_F(ExactnessTest, NeedsASequenceAndGivesItBack) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Check().exact);
  while (engine_->Open().ok()) continue;
  EXPECT_EQ(CheckExactness(engine_.get(), sequence_, *codec_, streams_, kPromptTokens, tokens_, {}).status().code(),
            ErrorCode::kLimit);
}

}  // namespace
}  // namespace lynx
