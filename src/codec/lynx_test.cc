// What is particular to `lynx`: sinks, recent tokens, RoPE, rate, nesting, and bytes that nobody wrote.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "codec/lynx_profile.h"
#include "codec/lynx_reference.h"
#include "codec/lynx_tables.h"
#include "codec/page_codec.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"
#include "codec/rope_table.h"

namespace lynx::testing {
namespace {

constexpr int kDim = 64;

struct Page {
  PageAddress address{0, KvKind::kValue, 0, 1, 512, 256};
  int head_dim = kDim;
  ElementType type = ElementType::kF32;
  RopeShape rope;
  std::vector<float> values;
  int tokens_after = -1;

  CacheShape Shape() const {
    CacheShape shape = ShapeFor(address.head_count, head_dim, type);
    for (LayerShape& layer : shape.layers) layer.rope = rope;
    return shape;
  }
  std::size_t size() const { return std::size_t(address.token_count * address.head_count * head_dim); }
};

Page NormalPage(std::uint64_t seed, int tokens = 256, int head_dim = kDim) {
  Page page;
  page.address.token_count = tokens;
  page.head_dim = head_dim;
  Random random(seed);
  page.values.resize(page.size());
  for (float& value : page.values) value = Normal(random);
  return page;
}

Streams Encode(const std::string& spec, const Page& page) {
  PageMemory source(page.address, page.head_dim, page.type);
  source.Fill(page.values);
  PageView view = source.view();
  view.tokens_after = page.tokens_after;
  return EncodePage(*MustMake(spec, page.Shape()), view).value();
}

std::vector<float> Decode(const std::string& spec, const Page& page, const Streams& streams, std::size_t count) {
  PageMemory target(page.address, page.head_dim, ElementType::kF32);
  const Status status = DecodePage(*MustMake(spec, page.Shape()), streams, count, target.span());
  EXPECT_TRUE(status.ok()) << status.ToString();
  return target.Values();
}

double Bits(const Page& page, const std::vector<std::byte>& stream) {
  return 8.0 * double(stream.size()) / double(page.size());
}

float StepOf(const Streams& streams) {
  return EighthOctave(LoadLittle<std::int16_t>(streams[0].data() + kPageStreamHeaderBytes + 4));
}

TEST(Lynx, ErrorsAreHalfACell) {
  for (Input input : kInputs) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Page page;
      page.address.token_count = 200;
      page.values = PaintValues(input, 200, kDim, seed);
      const Streams streams = Encode("lynx:streams=3", page);
      ASSERT_FALSE(IsExact(streams));
      const float step = StepOf(streams);
      for (std::size_t count = 1; count <= 3; ++count) {
        const auto decoded = Decode("lynx:streams=3", page, streams, count);
        const float bound = step / (count == 1 ? 2.0f : count == 2 ? 8.0f : 32.0f);
        for (std::size_t i = 0; i < page.size(); ++i) {
          ASSERT_LE(std::fabs(decoded[i] - page.values[i]), bound + 0x1p-22f * std::fabs(page.values[i]))
              << "input " << int(input) << " seed " << seed << " streams " << count << " element " << i;
        }
      }
    }
  }
}

TEST(Lynx, PromptsMayEndAnywhere) {
  Page page = NormalPage(3);
  page.address.first_token = 2147483391;
  page.tokens_after = 2147483647;
  EXPECT_FALSE(IsExact(Encode("lynx", page)));
}

TEST(Lynx, WhatAllStreamsGiveDoesNotDependOnTheirNumber) {
  Page page = NormalPage(3);
  page.tokens_after = 200;
  const Streams two = Encode("lynx:streams=2", page), three = Encode("lynx:streams=3", page);
  EXPECT_EQ(Decode("lynx:streams=2", page, two, 2), Decode("lynx:streams=3", page, three, 3));
  EXPECT_EQ(Decode("lynx:streams=2", page, two, 1), Decode("lynx:streams=3", page, three, 1));
  EXPECT_EQ(two[1].size() - kPageStreamHeaderBytes, 2 * (three[1].size() - kPageStreamHeaderBytes));
  EXPECT_EQ(three[1].size(), three[2].size());
  const auto middle = Decode("lynx:streams=3", page, three, 2);
  const double ratio = Nmse(page.values, Decode("lynx:streams=3", page, three, 1)) / Nmse(page.values, middle);
  EXPECT_GT(ratio, 12);  // two bits: 16
  EXPECT_LT(ratio, 17);
}

TEST(Lynx, SinksAreExactAndInfluenceNothing) {
  for (ElementType type : {ElementType::kBf16, ElementType::kF16, ElementType::kF32}) {
    for (int first : {0, 2, 4}) {
      Page page;
      page.address = {0, KvKind::kKey, 0, 1, first, 100};
      page.type = type;
      page.values = PaintValues(Input::kNormal, 100, kDim, 4, type);
      const int sinks = 4 - first;
      Page other = page;
      for (int i = 0; i < sinks * kDim; ++i) page.values[std::size_t(i)] *= 64.0f;
      if (sinks > 0) page.values[0] = -0.0f;
      const Streams streams = Encode("lynx", page), quieter = Encode("lynx", other);
      ASSERT_FALSE(IsExact(streams));
      EXPECT_EQ(streams[1].size() - kPageStreamHeaderBytes, std::size_t(100 - sinks) / 2 * kDim);
      EXPECT_EQ(streams[0].size(), quieter[0].size());
      for (std::size_t count : {1, 2}) {
        PageMemory source(page.address, kDim, type), target(page.address, kDim, type);
        source.Fill(page.values);
        ASSERT_TRUE(DecodePage(*MustMake("lynx", page.Shape()), streams, count, target.span()).ok());
        const std::size_t bytes = std::size_t(sinks * kDim * ElementBytes(type));
        const auto expected = source.Bits(), actual = target.Bits();
        EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + std::ptrdiff_t(bytes), actual.begin()));
        const auto loud = Decode("lynx", page, streams, count), quiet = Decode("lynx", other, quieter, count);
        EXPECT_TRUE(std::equal(loud.begin() + sinks * kDim, loud.end(), quiet.begin() + sinks * kDim));
      }
    }
  }
}

TEST(Lynx, RecentTokensAreCompleteInStreamZero) {
  for (const auto& [recent, after, expected] :
       {std::tuple{64, 0, 64}, {64, 40, 24}, {64, 64, 0}, {64, -1, 0}, {0, 0, 0}, {255, 0, 100}, {3, 0, 3}}) {
    Page page;
    page.address.token_count = 100;
    page.values = PaintValues(Input::kNormal, 100, kDim, 5);
    page.tokens_after = after;
    const std::string spec = "lynx:recent=" + std::to_string(recent);
    const Streams streams = Encode(spec, page);
    const auto anchor = Decode(spec, page, streams, 1), full = Decode(spec, page, streams, 2);
    const auto begin = std::ptrdiff_t(100 - expected) * kDim;
    EXPECT_TRUE(std::equal(anchor.begin() + begin, anchor.end(), full.begin() + begin));
    EXPECT_TRUE(expected == 100 || !std::equal(anchor.begin(), anchor.begin() + begin, full.begin()));
    EXPECT_EQ(streams[1].size() - kPageStreamHeaderBytes, std::size_t(100 - expected + 1) / 2 * kDim);
  }
}

// Sinks, recent tokens, headers: everything that stream 0 brings over a prompt.
TEST(Lynx, RateOfAPromptIsWhatWasAskedFor) {
  for (const auto& [tokens, anchor_bits] : {std::pair{2048, 1.2}, {2048, 2.25}, {2000, 4.5}, {600, 2.25}}) {
    double bytes = 0;
    for (int first = 0; first < tokens; first += 256) {
      Page page = NormalPage(std::uint64_t(first) + 6, std::min(256, tokens - first));
      page.type = ElementType::kBf16;
      page.address.first_token = first;
      page.tokens_after = tokens - first - page.address.token_count;
      for (std::size_t i = 0; i < page.size(); ++i) page.values[i] *= 0.5f + float(i % kDim) / 32.0f;
      bytes += double(Encode("lynx:anchor_bits=" + std::to_string(anchor_bits).substr(0, 4), page)[0].size());
    }
    EXPECT_NEAR(8 * bytes / (double(tokens) * kDim) / anchor_bits, 1.0, 0.03) << tokens << " " << anchor_bits;
  }
}

TEST(Lynx, RateIsWhatWasAskedFor) {
  for (double anchor_bits : {1.2, 1.55, 2.25, 3.0, 4.5}) {
    for (bool laplace : {false, true}) {
      for (int head_dim : {64, 128}) {
        Page page = NormalPage(6, 256, head_dim);
        page.type = ElementType::kBf16;
        Random random(7);
        for (std::size_t i = 0; i < page.size(); ++i) {
          const double unit = random.Unit() - 0.5;
          if (laplace) page.values[i] = float(unit < 0 ? std::log(1 + 2 * unit) : -std::log(1 - 2 * unit));
          page.values[i] *= 0.5f + float(i % std::size_t(head_dim)) / 32.0f;
          page.values[i] += float(i % 7) - 3.0f;
        }
        const std::string spec = "lynx:anchor_bits=" + std::to_string(anchor_bits).substr(0, 4);
        const Streams streams = Encode(spec, page);
        EXPECT_NEAR(Bits(page, streams[0]) / anchor_bits, 1.0, 0.1) << spec << (laplace ? " laplace" : " normal");
        const auto codec = MustMake(spec, page.Shape());
        const double expected = double(codec->ExpectedBytes({KvKind::kValue, 1, head_dim, 256}, 0));
        EXPECT_NEAR(double(streams[0].size()) / expected, 1.0, 0.1);
      }
    }
  }
}

// K as RoPE leaves it: constant channels turn with the position and look like noise of their size until turned back.
TEST(Lynx, RopeIsTakenOut) {
  for (const auto& [pairing, offset, dims] : {std::tuple{RopePairing::kNorm, 0, 64},
                                              {RopePairing::kNeox, 0, 64},
                                              {RopePairing::kNorm, 0, 32},
                                              {RopePairing::kNeox, 16, 32}}) {
    Page page = NormalPage(8);
    page.address.kind = KvKind::kKey;
    page.rope = RopeOf(pairing, offset, dims);
    const RopeTable table(page.rope, 256);
    for (int token = 0; token < 256; ++token) {
      float* row = page.values.data() + token * kDim;
      for (int c = 0; c < kDim; ++c) row[c] = row[c] * 0.1f + float(c % 11) - 5.0f;
      table.Rotate(row, token);
    }
    const auto with = Decode("lynx", page, Encode("lynx", page), 1);
    const auto without = Decode("lynx:unrope=0", page, Encode("lynx:unrope=0", page), 1);
    const double gain = Nmse(page.values, without) / Nmse(page.values, with);
    EXPECT_GT(gain, dims == 64 ? 20 : 4) << int(pairing) << " " << offset << " " << dims;

    Page value = page;  // V is not rotated
    value.address.kind = KvKind::kValue;
    EXPECT_EQ(Decode("lynx", value, Encode("lynx", value), 2),
              Decode("lynx:unrope=0", value, Encode("lynx:unrope=0", value), 2));
  }
}

TEST(Lynx, RotationIsWhatRopeDoes) {
  const std::vector<float> radians = {1.0f, 0.25f, 0.01f};
  for (RopePairing pairing : {RopePairing::kNorm, RopePairing::kNeox}) {
    const RopeTable table({pairing, 1, 6, radians}, 256);
    for (int token : {0, 1, 100, 255}) {
      std::vector<float> head = {1, 2, 3, 4, 5, 6, 7, 8};
      const std::vector<float> before = head;
      table.Rotate(head.data(), token);
      EXPECT_EQ(head[0], 1);
      EXPECT_EQ(head[7], 8);
      for (int pair = 0; pair < 3; ++pair) {
        const int a = pairing == RopePairing::kNorm ? 1 + 2 * pair : 1 + pair;
        const int b = pairing == RopePairing::kNorm ? a + 1 : a + 3;
        const double angle = double(token) * double(radians[std::size_t(pair)]);
        EXPECT_NEAR(head[std::size_t(a)],
                    before[std::size_t(a)] * std::cos(angle) - before[std::size_t(b)] * std::sin(angle), 2e-6);
        EXPECT_NEAR(head[std::size_t(b)],
                    before[std::size_t(a)] * std::sin(angle) + before[std::size_t(b)] * std::cos(angle), 2e-6);
      }
      table.Unrotate(head.data(), token);
      for (std::size_t c = 0; c < head.size(); ++c) EXPECT_NEAR(head[c], before[c], 2e-6);
    }
  }
}

TEST(Lynx, ShapesOfRopeThatDoNotFitAreRefused) {
  const auto made = [](const RopeShape& rope) {
    CacheShape shape = ShapeFor(1, 8);
    shape.layers[1].rope = rope;
    return MakeCodec("lynx", shape).status().code();
  };
  EXPECT_EQ(made({RopePairing::kNorm, 4, 4, {1.0f, 0.5f}}), ErrorCode::kOk);
  EXPECT_EQ(made({RopePairing::kNorm, 6, 4, {1.0f, 0.5f}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing::kNorm, -2, 4, {1.0f, 0.5f}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing::kNorm, 0, 3, {1.0f}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing::kNorm, 0, 0, {}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing::kNeox, 0, 4, {1.0f}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing::kNeox, 0, 4, {1.0f, NAN}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing::kNeox, 0, 4, {1.0f, 1e9f}}), ErrorCode::kInvalid);
  EXPECT_EQ(made({RopePairing(7), 0, 4, {1.0f, 1.0f}}), ErrorCode::kInvalid);
}

TEST(Lynx, DeadChannelsTakeNothingFromTheOthers) {
  Page page = NormalPage(9);
  const double all = Nmse(page.values, Decode("lynx", page, Encode("lynx", page), 1));
  for (std::size_t i = 0; i < page.size(); ++i) page.values[i] = i % 2 == 0 ? page.values[i] : 3.0f;
  const Streams streams = Encode("lynx", page);
  const auto decoded = Decode("lynx", page, streams, 1);
  EXPECT_NEAR(Bits(page, streams[0]), 2.25, 0.25);
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < page.size(); i += 2) {
    error += std::pow(double(page.values[i]) - decoded[i], 2);
    energy += std::pow(double(page.values[i]), 2);
  }
  EXPECT_LT(error / energy, all / 8);  // the bits of the dead ones: 2 more for each live one, NMSE / 16
}

TEST(Lynx, ConstantPagesComeBackInBf16) {
  Page page;
  page.type = ElementType::kBf16;
  page.values = PaintValues(Input::kConstant, 256, kDim, 1, ElementType::kBf16);
  const Streams streams = Encode("lynx", page);
  PageMemory source(page.address, kDim, page.type), target(page.address, kDim, page.type);
  source.Fill(page.values);
  EXPECT_LT(Bits(page, streams[0]), 0.3);
  for (std::size_t count : {1, 2}) {
    ASSERT_TRUE(DecodePage(*MustMake("lynx", page.Shape()), streams, count, target.span()).ok());
    // Within the 2^-16 of the page's greatest value that steps end at.
    const auto decoded = target.Values();
    for (std::size_t i = 0; i < page.size(); ++i) {
      EXPECT_NEAR(decoded[i], page.values[i], 0x1p-8 * std::fabs(page.values[i]) + 0x1p-12);
    }
  }
}

TEST(Lynx, OneLoudTokenDoesNotDrownTheOthers) {
  Page page = NormalPage(10);
  // Of the page, the tokens before the loud one, and it alone.
  const auto quiet = [](const std::vector<float>& rows) { return std::span(rows).first(100 * kDim); };
  const auto loud = [](const std::vector<float>& rows) { return std::span(rows).subspan(100 * kDim, kDim); };
  const double before = Nmse(quiet(page.values), quiet(Decode("lynx", page, Encode("lynx", page), 1)));
  for (int c = 0; c < kDim; ++c) page.values[std::size_t(100 * kDim + c)] *= 100.0f;
  const auto decoded = Decode("lynx", page, Encode("lynx", page), 1);
  EXPECT_LT(Nmse(quiet(page.values), quiet(decoded)), 8 * before);
  EXPECT_LT(Nmse(loud(page.values), loud(decoded)), 1e-4);
}

TEST(Lynx, PagesThatCodingDoesNotShortenTravelExactly) {
  for (int tokens : {1, 2}) {
    Page page = NormalPage(11, tokens, 8);
    page.type = ElementType::kBf16;
    EXPECT_TRUE(IsExact(Encode("lynx", page)));
  }
  Page sinks = NormalPage(12, 3);
  sinks.address.first_token = 0;
  EXPECT_TRUE(IsExact(Encode("lynx", sinks)));
  EXPECT_FALSE(IsExact(Encode("lynx", NormalPage(13, 20))));
}

// Several heads in one page: each has its own step.
TEST(Lynx, HeadsOfOnePageHaveTheirOwnSteps) {
  Page page;
  page.address.head_count = 2;
  page.values.resize(page.size());
  Random random(14);
  for (std::size_t i = 0; i < page.size(); ++i) page.values[i] = Normal(random) * (i / kDim % 2 == 0 ? 1.0f : 1000.0f);
  const auto decoded = Decode("lynx", page, Encode("lynx", page), 1);
  double error = 0;
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (i / kDim % 2 == 0) error += std::pow(double(decoded[i]) - page.values[i], 2);
  }
  EXPECT_LT(error / (256 * kDim), 0.1);
}

// With a profile the steps are delta / w, whatever the page; a decoder needs no profile.
TEST(LynxProfile, StepsFollowWeights) {
  Page page;
  page.address.head_count = 2;
  page.values.resize(page.size());
  Random random(18);
  for (float& value : page.values) value = Normal(random);
  const CacheShape shape = page.Shape();
  LynxProfile profile;
  for (const LayerShape& layer : shape.layers) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      auto& row = profile.emplace_back();
      for (int c = 0; c < layer.kv_heads * layer.HeadDim(kind); ++c) {
        row.push_back({-21, std::int16_t(c % 4 == 0 ? 128 : -64 * (c / kDim))});  // 4, or 1 in head 0 and 1/2 in head 1
      }
    }
  }
  const Profile bytes = WriteLynxProfile(profile, shape);
  const auto read = ReadLynxProfile(bytes, shape);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, profile);
  const auto codec = MakeCodec("lynx", shape, &bytes);
  ASSERT_TRUE(codec.ok());
  EXPECT_EQ((*codec)->info().spec, MustMake("lynx", shape)->info().spec);
  PageMemory source(page.address, kDim, page.type);
  source.Fill(page.values);
  const Streams streams = EncodePage(**codec, source.view()).value();
  const auto decoded = Decode("lynx", page, streams, 1);
  double error[3] = {};
  for (std::size_t i = 0; i < page.size(); ++i) {
    const std::size_t c = i % (2 * kDim);
    error[c % 4 == 0 ? 0 : 1 + c / kDim] += std::pow(double(decoded[i]) - page.values[i], 2) / (c % 4 == 0 ? 32 : 48);
  }
  EXPECT_NEAR(error[1] / error[0], 16, 4);
  EXPECT_GT(error[2] / error[1], 2);
  EXPECT_NEAR(Bits(page, streams[0]), 2.25, 0.25);
}

TEST(LynxProfile, DamagedAndOtherProfilesAreRefused) {
  const CacheShape shape = ShapeFor(2, 8);
  LynxProfile profile;
  for (const LayerShape& layer : shape.layers) {
    profile.emplace_back(std::size_t(2 * layer.key_dim), LynxChannelProfile{-8, 3});
    profile.emplace_back(std::size_t(2 * layer.value_dim), LynxChannelProfile{-9, 4});
  }
  const Profile good = WriteLynxProfile(profile, shape);
  EXPECT_TRUE(MakeCodec("lynx", shape, &good).ok());
  for (std::size_t size = 0; size < good.bytes.size(); ++size) {
    Profile damaged{{good.bytes.begin(), good.bytes.begin() + std::ptrdiff_t(size)}};
    EXPECT_EQ(MakeCodec("lynx", shape, &damaged).status().code(), ErrorCode::kCorrupt);
    damaged = good;
    damaged.bytes[size] ^= std::byte{4};
    EXPECT_EQ(MakeCodec("lynx", shape, &damaged).status().code(), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(MakeCodec("lynx", ShapeFor(2, 9), &good).status().code(), ErrorCode::kInvalid);
  EXPECT_EQ(MakeCodec("lynx", ShapeFor(1, 8), &good).status().code(), ErrorCode::kInvalid);
}

// Dead channels, and numbers that no calibration writes.
TEST(LynxProfile, StepsThatAPageCannotTellAreNotChosen) {
  constexpr std::int16_t kWeights[] = {-32768, -32767, -6400, -6399, -1, 0, 9, 24, 6400, 32766, 32767};
  Random random(31);
  for (int run = 0; run < 300; ++run) {
    std::vector<LynxChannelProfile> head(kDim);
    for (LynxChannelProfile& channel : head) {
      channel.weight =
          random.Below(4) == 0 ? kWeights[random.Below(std::size(kWeights))] : std::int16_t(random.Below(300));
    }
    for (int delta : {-131072, -1000, 0, 8, 777, 131072}) {
      const auto steps = LynxProfileSteps(head, delta);
      for (std::int16_t step : steps) {
        ASSERT_EQ((step - steps[0]) % kLynxOffsetUnit, 0) << "run " << run << " delta " << delta;
        ASSERT_GE(step, kLynxLeastStep);
        ASSERT_LE(step, kLynxGreatestStep);
      }
    }
  }
}

// A step that is not the decoder's would move these channels' means, which are 1000 times their ranges, by 9 %.
TEST(LynxProfile, ChannelsOfExtremeWeightLeaveOthersAsTheyAre) {
  for (std::int16_t weight = 0; weight < 32; ++weight) {
    Page page;
    page.values = PaintValues(Input::kOffset, 256, kDim, 32);
    const CacheShape shape = page.Shape();
    LynxProfile profile;
    for (const LayerShape& layer : shape.layers) {
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        auto& row = profile.emplace_back(std::size_t(layer.HeadDim(kind)), LynxChannelProfile{0, weight});
        for (std::size_t c = 0; c < row.size(); c += 8) row[c] = {-32768, 32767};
      }
    }
    const Profile bytes = WriteLynxProfile(profile, shape);
    PageMemory source(page.address, kDim, page.type);
    source.Fill(page.values);
    const Streams streams = EncodePage(*MakeCodec("lynx", shape, &bytes).value(), source.view()).value();
    ASSERT_FALSE(IsExact(streams));
    const auto decoded = Decode("lynx", page, streams, 2);
    for (std::size_t i = 0; i < page.size(); ++i) {
      ASSERT_NEAR(decoded[i], page.values[i], 1) << "weight " << weight << " element " << i;
    }
  }
}

// Anything behind a valid checksum is refused, or decodes to finite numbers.
class HostileLynx : public ::testing::Test {
 protected:
  HostileLynx() {
    page_ = NormalPage(15, 60, 40);
    page_.address = {0, KvKind::kKey, 0, 1, 2, 60};
    page_.rope = {RopePairing::kNeox, 0, 4, {1.0f, 0.1f}};
    page_.tokens_after = 50;
    for (std::size_t i = 0; i < page_.size(); i += 97) page_.values[i] *= 50.0f;  // open bits
    for (std::size_t i = 3; i < page_.size(); i += 40) page_.values[i] *= 100.0f;
    streams_ = Encode("lynx", page_);
    EXPECT_FALSE(IsExact(streams_));
  }
  // Decodes both streams; true when they were accepted.
  bool Accepts(Streams streams) {
    Reseal(&streams);
    for (auto& stream : streams) stream.shrink_to_fit();
    PageMemory target(page_.address, page_.head_dim, ElementType::kF32);
    const auto before = target.bytes();
    const Status status = DecodePage(*MustMake("lynx", page_.Shape()), streams, 2, target.span());
    if (status.ok()) {
      for (float value : target.Values()) EXPECT_TRUE(std::isfinite(value));
      return true;
    }
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << status.ToString();
    EXPECT_EQ(target.bytes(), before);
    return false;
  }
  Page page_;
  Streams streams_;
};

TEST_F(HostileLynx, UndamagedIsAccepted) { EXPECT_TRUE(Accepts(streams_)); }

TEST_F(HostileLynx, OtherLengthsAreRefused) {
  for (std::size_t stream : {0, 1}) {
    for (std::size_t size = kPageStreamHeaderBytes; size < streams_[stream].size(); ++size) {
      Streams damaged = streams_;
      damaged[stream].resize(size);
      EXPECT_FALSE(Accepts(damaged)) << stream << " " << size;
    }
    Streams damaged = streams_;
    damaged[stream].push_back(std::byte{0});
    EXPECT_FALSE(Accepts(damaged));
  }
}

TEST_F(HostileLynx, RandomDamage) {
  Random random(16);
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    Streams damaged = streams_;
    const std::size_t bytes = damaged[0].size() - kPageStreamHeaderBytes;
    // Often near the beginning, where the fields are.
    const std::size_t reach = random.Below(2) == 0 ? 16 : bytes;
    for (std::uint64_t i = 0; i < 1 + random.Below(4); ++i) {
      damaged[0][kPageStreamHeaderBytes + random.Below(reach)] = std::byte(random.Next());
    }
    if (random.Below(4) == 0) damaged[0].resize(kPageStreamHeaderBytes + random.Below(bytes));
    accepted += Accepts(damaged) ? 1 : 0;
  }
  EXPECT_GT(accepted, 10);
  EXPECT_LT(accepted, 2000);
}

TEST_F(HostileLynx, NoiseIsRefused) {
  Random random(17);
  for (int round = 0; round < 1000; ++round) {
    Streams damaged = streams_;
    for (std::size_t i = kPageStreamHeaderBytes; i < damaged[0].size(); ++i) damaged[0][i] = std::byte(random.Next());
    damaged[0][kPageStreamHeaderBytes + 5] = std::byte{0};  // a possible step
    Accepts(damaged);
  }
}

}  // namespace
}  // namespace lynx::testing
