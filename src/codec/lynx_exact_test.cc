// `exact=1` of `lynx`: BF16 pages come back bit for bit, and everything before the last stream is what it was.
#include <gtest/gtest.h>

#include "codec/lynx_profile.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {
namespace {

struct Page {
  PageAddress address{0, KvKind::kKey, 0, 1, 512, 256};
  int head_dim = 64;
  RopeShape rope;
  int tokens_after = -1;

  CacheShape Shape() const {
    CacheShape shape = ShapeFor(address.head_count, head_dim);
    for (LayerShape& layer : shape.layers) layer.rope = rope;
    return shape;
  }
  int channels() const { return address.head_count * head_dim; }
};

// What exact=1 promises of one page. Bits per element of all its streams.
double ExpectRestored(const std::string& spec, const Page& page, const std::vector<float>& values,
                      const Profile* profile = nullptr) {
  const CacheShape shape = page.Shape();
  const auto codec = MakeCodec(spec + ",exact=1", shape, profile).value();
  const auto without = MakeCodec(spec, shape, profile).value();
  PageMemory source(page.address, page.head_dim, ElementType::kBf16);
  source.Fill(values);
  PageView view = source.view();
  view.tokens_after = page.tokens_after;
  const Streams streams = EncodePage(*codec, view).value(), shorter = EncodePage(*without, view).value();
  EXPECT_EQ(streams,
            EncodePage(*MakeCodecWith(ReferenceKernels(), spec + ",exact=1", shape, profile).value(), view).value());
  EXPECT_EQ(streams.size(), shorter.size() + 1);
  const bool raw = IsExact(streams);
  double bytes = 0;
  for (std::size_t count = 1; count <= streams.size(); ++count) {
    PageMemory target(page.address, page.head_dim, ElementType::kBf16), before = target;
    EXPECT_TRUE(DecodePage(*codec, streams, count, target.span()).ok());
    bytes += double(streams[count - 1].size());
    if (raw || count == streams.size()) {
      EXPECT_EQ(target.Bits(), source.Bits()) << spec << " from " << count;
    } else {
      EXPECT_TRUE(DecodePage(*without, shorter, count, before.span()).ok());
      EXPECT_EQ(target.Bits(), before.Bits()) << spec << " from " << count;
    }
  }
  EXPECT_LT(bytes, 2.0 * double(values.size()) + 36.0 * double(streams.size()) + 1);
  return 8 * bytes / double(values.size());
}

constexpr const char* kSpecs[] = {"lynx:streams=2", "lynx:anchor_bits=4.5,streams=3,recent=100",
                                  "lynx:anchor_bits=1.2,unrope=0"};

TEST(LynxExact, EveryInputAndShape) {
  const RopeShape ropes[] = {{}, RopeOf(RopePairing::kNorm, 0, 64), RopeOf(RopePairing::kNeox, 3, 40)};
  std::uint64_t seed = 1;
  for (Input input : kInputs) {
    for (const RopeShape& rope : ropes) {
      for (int tokens : {1, 5, 33, 256}) {
        for (int first : {0, 3, 512}) {
          Page page;
          page.rope = rope;
          page.address.first_token = first;
          page.address.token_count = tokens;
          page.tokens_after = tokens == 33 ? 20 : -1;
          const auto values = PaintValues(input, tokens, page.channels(), ++seed, ElementType::kBf16);
          for (const char* spec : kSpecs) {
            SCOPED_TRACE(std::string(spec) + ", input " + std::to_string(int(input)) + ", seed " +
                         std::to_string(seed) + ", " + std::to_string(tokens) + " tokens from " +
                         std::to_string(first));
            ExpectRestored(spec, page, values);
          }
        }
      }
    }
  }
}

TEST(LynxExact, AnyWidthAndSeveralHeads) {
  for (int head_dim : {1, 2, 5, 17, 80, 97, 256, 576}) {
    for (int heads : {1, 3}) {
      for (RopePairing pairing : {RopePairing::kNorm, RopePairing::kNeox}) {
        SCOPED_TRACE(std::to_string(heads) + " x " + std::to_string(head_dim));
        Page page;
        page.head_dim = head_dim;
        page.address.head_count = heads;
        page.address.token_count = 40;
        if (head_dim > 1) page.rope = RopeOf(pairing, head_dim % 2, head_dim / 2 * 2);
        ExpectRestored(kSpecs[0], page, PaintValues(Input::kNormal, 40, page.channels(), 5, ElementType::kBf16));
      }
    }
  }
}

// Any finite element, in channels that differ by all octaves there are; 0 and -0 among ordinary values.
TEST(LynxExact, AnyBits) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Page page;
    page.rope = seed % 2 == 0 ? RopeOf(RopePairing::kNeox, 0, 64) : RopeShape{};
    auto values = PaintValues(Input::kNormal, 256, 64, seed, ElementType::kBf16);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int kind = int(random.Below(seed * 20));
      if (kind == 0) values[i] = Bf16ToFloat(std::uint16_t(random.Next() % 0x4680 | (random.Next() & 0x8000)));
      if (kind == 1) values[i] = 0.0f;
      if (kind == 2) values[i] = -0.0f;
    }
    ExpectRestored(kSpecs[0], page, values);
  }
}

TEST(LynxExact, WithAProfile) {
  Page page;
  page.rope = RopeOf(RopePairing::kNeox, 0, 64);
  const CacheShape shape = page.Shape();
  LynxProfile rows;
  Random random(3);
  for (const LayerShape& layer : shape.layers) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      auto& row = rows.emplace_back(std::size_t(layer.kv_heads * layer.HeadDim(kind)));
      for (auto& channel : row) channel = {std::int16_t(random.Below(64)), std::int16_t(random.Below(400))};
    }
  }
  const Profile profile = WriteLynxProfile(rows, shape);
  for (Input input : {Input::kNormal, Input::kOffset, Input::kLoudToken}) {
    for (const char* spec : kSpecs) {
      ExpectRestored(spec, page, PaintValues(input, 256, 64, 7, ElementType::kBf16), &profile);
    }
  }
}

// Normal values as BF16 have an entropy of 10.46 bits, 10.55 where only exponents are coded. Headers, and what a page
// says about its channels, come to that.
TEST(LynxExact, Rate) {
  Page page;
  Random random(9);
  std::vector<float> values(256 * 64);
  for (float& value : values) value = Bf16ToFloat(FloatToBf16(Normal(random)));
  EXPECT_LT(ExpectRestored("lynx:streams=2", page, values), 10.68);
  page.rope = RopeOf(RopePairing::kNeox, 0, 64);
  EXPECT_LT(ExpectRestored("lynx:streams=2", page, values), 10.69);
}

TEST(LynxExact, OnlyForBf16) {
  for (ElementType type : {ElementType::kF16, ElementType::kF32}) {
    const Status status = MakeCodec("lynx:exact=1", ShapeFor(1, 8, type)).status();
    EXPECT_EQ(status.code(), ErrorCode::kInvalid);
    EXPECT_NE(status.message().find("BF16"), std::string::npos);
  }
  EXPECT_EQ(MakeCodec("lynx:exact=0", ShapeFor(1, 8)).value()->info().spec,
            "lynx:anchor_bits=2.25,recent=64,streams=2,unrope=1");
  EXPECT_EQ(MakeCodec("lynx:exact=1", ShapeFor(1, 8)).value()->info().spec,
            "lynx:anchor_bits=2.25,recent=64,streams=2,unrope=1,exact=1");
}

// Behind valid checksums the exact stream decodes to finite elements or is refused, and then nothing is written.
TEST(LynxExact, HostilePayloads) {
  Page page;
  page.rope = RopeOf(RopePairing::kNorm, 0, 64);
  page.address.token_count = 40;
  const auto codec = MustMake("lynx:exact=1", page.Shape());
  PageMemory source(page.address, page.head_dim, ElementType::kBf16);
  source.Fill(PaintValues(Input::kNormal, 40, 64, 4, ElementType::kBf16));
  const Streams streams = EncodePage(*codec, source.view()).value();
  Random random(6);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Streams hostile = streams;
    auto& last = hostile[2];
    const std::size_t payload = last.size() - kPageStreamHeaderBytes;
    if (round % 4 == 0) {
      last.resize(kPageStreamHeaderBytes + random.Below(payload + 20));
    } else {
      const std::size_t count = round % 4 == 1 ? payload : 1 + random.Below(8);
      for (std::size_t i = 0; i < count; ++i) {
        last[kPageStreamHeaderBytes + (count == payload ? i : random.Below(payload))] = std::byte(random.Next());
      }
    }
    Reseal(&hostile);
    PageMemory target(page.address, page.head_dim, ElementType::kBf16);
    const auto before = target.bytes();
    const Status status = DecodePage(*codec, hostile, 3, target.span());
    if (status.ok()) {
      for (float value : target.Values()) ASSERT_TRUE(std::isfinite(value)) << "round " << round;
    } else {
      ++refused;
      ASSERT_EQ(status.code(), ErrorCode::kCorrupt);
      ASSERT_EQ(target.bytes(), before);
    }
  }
  EXPECT_GT(refused, 1900);
}

}  // namespace
}  // namespace lynx::testing
