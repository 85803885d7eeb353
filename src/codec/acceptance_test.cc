// The cases that caches of today's models and engines bring (names carry their numbers), for the codecs that are meant
// for them: `nested` and `lynx`. What only a pair of nodes can show is tested in src/serve.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "codec/lynx_profile.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {
namespace {

// As they are, and with everything that is optional.
constexpr const char* kSpecs[] = {"nested", "nested:anchor=3,recent=255,unrope=1", "lynx", "lynx:streams=3,recent=255"};

void Fill(CacheBlock* block, std::uint64_t seed) {
  for (int layer = 0; layer < int(block->shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = block->Rows(layer, kind);
      const auto values = PaintValues(Input::kNormal, int(rows.size() / 2), 1, seed++, ElementType::kBf16);
      for (std::size_t i = 0; i < values.size(); ++i) {
        StoreElement(values[i], ElementType::kBf16, rows.data() + 2 * i);
      }
    }
  }
}

std::vector<float> ValuesOf(const CacheBlock& block) {
  std::vector<float> values;
  for (int layer = 0; layer < int(block.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = block.Rows(layer, kind);
      for (std::size_t i = 0; i < rows.size(); i += 2) {
        values.push_back(LoadElement(rows.data() + i, ElementType::kBf16));
      }
    }
  }
  return values;
}

// A whole cache through a codec; from all streams (count 0), or from the first `count`.
CacheBlock Through(const Codec& codec, const CacheBlock& source, int page_tokens, std::size_t count) {
  const CacheShape& shape = source.shape();
  CacheBlock target(shape, source.first_token(), source.token_count());
  for (const PageAddress& address :
       PagesOf(shape, source.first_token(), source.token_count(), page_tokens, codec.info().heads_per_page)) {
    PageView page = source.Page(address).value();
    page.tokens_after = source.first_token() + source.token_count() - address.first_token - address.token_count;
    const auto streams = EncodePage(codec, page);
    EXPECT_TRUE(streams.ok()) << streams.status().ToString();
    const Status status =
        DecodePage(codec, *streams, count == 0 ? streams->size() : count, target.Page(address).value());
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return target;
}

void ExpectComesBack(const Codec& codec, const CacheShape& shape, int tokens, int page_tokens = 256) {
  CacheBlock source(shape, 0, tokens);
  Fill(&source, 7);
  const auto values = ValuesOf(source);
  // Normal values. Half the bits of a page of 16 tokens go into what it says about its channels; anything out of place
  // would give 1 and more.
  EXPECT_LT(Nmse(values, ValuesOf(Through(codec, source, page_tokens, 1))), 0.5);
  EXPECT_LT(Nmse(values, ValuesOf(Through(codec, source, page_tokens, 0))), 2e-3);
}

// K and V side by side in the last dimension, heads or tokens or channels outermost, tokens downwards.
TEST(Acceptance, A1StridesGiveTheBytesOfTheContiguousCopy) {
  for (const char* spec : kSpecs) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      CacheShape shape = ShapeFor(2, 40);
      shape.layers[0].rope = RopeOf(RopePairing::kNeox, 0, 40);
      const auto codec = MustMake(spec, shape);
      const PageAddress address{0, kind, 0, 2, 2, 70};
      const auto values = PaintValues(Input::kNormal, 70, 80, 3, ElementType::kBf16);
      PageMemory dense(address, 40, ElementType::kBf16);
      dense.Fill(values);
      const Streams expected = EncodePage(*codec, dense.view()).value();
      ASSERT_FALSE(IsExact(expected));
      PageMemory back(address, 40, ElementType::kBf16);
      ASSERT_TRUE(DecodePage(*codec, expected, expected.size(), back.span()).ok());
      for (Layout layout : kLayouts) {
        SCOPED_TRACE(std::string(spec) + ", layout " + std::to_string(int(layout)));
        PageMemory source(address, 40, ElementType::kBf16, layout), target(address, 40, ElementType::kBf16, layout);
        source.Fill(values);
        EXPECT_EQ(EncodePage(*codec, source.view()).value(), expected);
        ASSERT_TRUE(DecodePage(*codec, expected, expected.size(), target.span()).ok());
        EXPECT_EQ(target.Bits(), back.Bits());
      }
    }
  }
}

TEST(Acceptance, A2OneLatentHeadWithoutV) {
  CacheShape shape;
  shape.layers.assign(2, {1, 576, 0, RopeOf(RopePairing::kNorm, 512, 64)});
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto codec = MustMake(spec, shape);
    ExpectComesBack(*codec, shape, 300);
    const PageAddress missing{0, KvKind::kValue, 0, 1, 0, 4};
    PageMemory page(missing, 0, ElementType::kBf16);
    EXPECT_EQ(EncodePage(*codec, page.view()).status().code(), ErrorCode::kInvalid);
  }
}

TEST(Acceptance, A3EachLayerHasItsOwnShape) {
  CacheShape shape;
  shape.layers = {{2, 256, 256, RopeOf(RopePairing::kNeox, 0, 256)},
                  {1, 512, 512, RopeOf(RopePairing::kNeox, 0, 128)},
                  {3, 64, 128, {}},
                  {1, 576, 0, RopeOf(RopePairing::kNorm, 512, 64)}};
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    ExpectComesBack(*MustMake(spec, shape), shape, 270);
  }
}

TEST(Acceptance, A4AnyWidth) {
  for (const char* spec : kSpecs) {
    for (int head_dim : {5, 17, 33, 63, 64, 80, 96, 97, 128, 192, 256, 576}) {
      SCOPED_TRACE(std::string(spec) + ", " + std::to_string(head_dim) + " wide");
      CacheShape shape;
      shape.layers.assign(1, {2, head_dim, head_dim, RopeOf(RopePairing::kNeox, head_dim % 2, head_dim / 2 * 2)});
      ExpectComesBack(*MustMake(spec, shape), shape, 140);
    }
  }
}

// Replicated KV heads (more ranks than heads): the streams of a head serve every rank that holds it, and no rank gets
// another head's values.
TEST(Acceptance, A5AHeadServesEveryRankThatHoldsIt) {
  const CacheShape shape = ShapeFor(4, 32);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto sender = MustMake(spec, shape), rank0 = MustMake(spec, shape), rank1 = MustMake(spec, shape);
    EXPECT_FALSE(sender->info().couples_heads);
    const PageAddress head{0, KvKind::kKey, 2, 1, 256, 60};
    PageMemory source(head, 32, ElementType::kBf16);
    source.Fill(PaintValues(Input::kNormal, 60, 32, 4, ElementType::kBf16));
    const Streams streams = EncodePage(*sender, source.view()).value();
    PageMemory first(head, 32, ElementType::kBf16), second(head, 32, ElementType::kBf16, Layout::kHeadsOutside);
    ASSERT_TRUE(DecodePage(*rank0, streams, streams.size(), first.span()).ok());
    ASSERT_TRUE(DecodePage(*rank1, streams, streams.size(), second.span()).ok());
    EXPECT_EQ(first.Bits(), second.Bits());
    for (const PageAddress& other : {PageAddress{0, KvKind::kKey, 1, 1, 256, 60}, {0, KvKind::kKey, 2, 2, 256, 60}}) {
      PageMemory target(other, 32, ElementType::kBf16);
      const auto before = target.bytes();
      const Status status = DecodePage(*rank0, streams, streams.size(), target.span());
      EXPECT_EQ(status.code(), ErrorCode::kInvalid);
      EXPECT_NE(status.message().find("address"), std::string::npos) << status.message();
      EXPECT_EQ(target.bytes(), before);
    }
  }
}

// Pages name tokens, not page numbers: nodes with pages of 16, 32 and 256 tokens read one another's.
TEST(Acceptance, A6AnyPageSize) {
  const CacheShape shape = ShapeFor(2, 64);
  for (const char* spec : kSpecs) {
    for (int page_tokens : {16, 32, 256}) {
      SCOPED_TRACE(std::string(spec) + ", pages of " + std::to_string(page_tokens));
      ExpectComesBack(*MustMake(spec, shape), shape, 300, page_tokens);
    }
    const auto codec = MustMake(spec, shape);
    CacheBlock source(shape, 0, 512), target(shape, 0, 512);
    Fill(&source, 5);
    const Streams streams =
        EncodePage(*codec, std::as_const(source).Page({0, KvKind::kKey, 0, 1, 256, 256}).value()).value();
    const PageAddress part{0, KvKind::kKey, 0, 1, 256, 16};
    EXPECT_EQ(DecodePage(*codec, streams, 1, target.Page(part).value()).code(), ErrorCode::kInvalid);
  }
}

// Slots behind the last token hold NaN, and nothing of them gets into the streams or the destination.
TEST(Acceptance, A7PartialLastPage) {
  const CacheShape shape = ShapeFor(1, 64);
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    const auto codec = MustMake(spec, shape);
    const PageAddress address{0, KvKind::kKey, 0, 1, 256, 44};
    CacheBlock clean(shape, 256, 256), dirty(shape, 256, 256), target(shape, 256, 256);
    Fill(&clean, 6);
    const auto from = clean.Rows(0, KvKind::kKey), to = dirty.Rows(0, KvKind::kKey);
    std::fill(to.begin(), to.end(), std::byte{0xff});
    std::copy_n(from.begin(), 44 * 64 * 2, to.begin());
    const Streams streams = EncodePage(*codec, std::as_const(dirty).Page(address).value()).value();
    EXPECT_FALSE(IsExact(streams));
    EXPECT_EQ(streams, EncodePage(*codec, std::as_const(clean).Page(address).value()).value());
    ASSERT_TRUE(DecodePage(*codec, streams, streams.size(), target.Page(address).value()).ok());
    const auto rows = std::as_const(target).Rows(0, KvKind::kKey);
    EXPECT_TRUE(std::all_of(rows.begin() + 44 * 64 * 2, rows.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(Acceptance, A8NonFiniteValuesComeBackBitForBit) {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()};
  const PageAddress address{0, KvKind::kKey, 0, 1, 2, 40};
  for (const char* spec : kSpecs) {
    for (float bad : kBad) {
      auto values = PaintValues(Input::kNormal, 40, 16, 8, ElementType::kBf16);
      values[300] = bad;
      values[301] = -0.0f;
      PageMemory source(address, 16, ElementType::kBf16);
      source.Fill(values);
      const auto codec = MakeCodec(spec, ShapeFor(1, 16)).value();
      const Streams streams = EncodePage(*codec, source.view()).value();
      EXPECT_TRUE(IsExact(streams));
      EXPECT_EQ(streams, EncodePage(*MustMake(spec, ShapeFor(1, 16), ReferenceKernels()), source.view()).value());
      for (std::size_t count = 1; count <= streams.size(); ++count) {
        PageMemory target(address, 16, ElementType::kBf16);
        ASSERT_TRUE(DecodePage(*codec, streams, count, target.span()).ok());
        EXPECT_EQ(target.Bits(), source.Bits()) << spec;
      }
    }
  }
}

TEST(Acceptance, A8EveryKernelSeesANanAnywhere) {
  const PageAddress address{0, KvKind::kValue, 0, 1, 512, 3};
  for (const std::string& name : CodecNames()) {
    for (ElementType type : {ElementType::kBf16, ElementType::kF16, ElementType::kF32}) {
      const CacheShape shape = ShapeFor(1, 17, type);
      for (std::size_t at = 0; at < 3 * 17; ++at) {
        auto values = PaintValues(Input::kNormal, 3, 17, 8, type);
        values[at] = std::numeric_limits<float>::quiet_NaN();
        PageMemory source(address, 17, type);
        source.Fill(values);
        const Streams expected = EncodePage(*MustMake(name, shape, ReferenceKernels()), source.view()).value();
        EXPECT_TRUE(IsExact(expected)) << name << " " << at;
        for (const CodecKernels* kernels : AllSimdKernels()) {
          EXPECT_EQ(EncodePage(*MustMake(name, shape, *kernels), source.view()).value(), expected)
              << name << " " << at << " " << kernels->name;
        }
      }
    }
  }
}

TEST(Acceptance, A8DenormalsAndMinusZeroAreOrdinaryValues) {
  const PageAddress address{0, KvKind::kKey, 0, 1, 512, 64};
  for (const char* spec : kSpecs) {
    for (Input input : {Input::kDenormals, Input::kZeros}) {
      const CacheShape shape = ShapeFor(1, 16, ElementType::kF32);
      PageMemory source(address, 16, ElementType::kF32);
      source.Fill(PaintValues(input, 64, 16, 9));
      const auto codec = MakeCodec(spec, shape).value();
      const Streams streams = EncodePage(*codec, source.view()).value();
      EXPECT_EQ(streams, EncodePage(*MustMake(spec, shape, ReferenceKernels()), source.view()).value());
      EXPECT_FALSE(IsExact(streams));
      for (std::size_t count = 1; count <= streams.size(); ++count) {
        PageMemory target(address, 16, ElementType::kF32);
        ASSERT_TRUE(DecodePage(*codec, streams, count, target.span()).ok());
        for (float value : target.Values()) EXPECT_LE(std::fabs(value), 0x1p-24f) << spec;
      }
    }
  }
}

struct Errors {
  std::vector<float> values, full;  // [token][channel]
  double Greatest(int channels, int channel) const {
    double greatest = 0;
    for (std::size_t i = std::size_t(channel); i < values.size(); i += std::size_t(channels)) {
      greatest = std::max(greatest, std::fabs(double(full[i]) - values[i]));
    }
    return greatest;
  }
};

// Through all streams, in F32.
Errors RoundTrip(const char* spec, std::vector<float> values, int channels) {
  const PageAddress address{0, KvKind::kKey, 0, 1, 512, int(values.size()) / channels};
  const auto codec = MakeCodec(spec, ShapeFor(1, channels, ElementType::kF32)).value();
  PageMemory source(address, channels, ElementType::kF32), target(address, channels, ElementType::kF32);
  source.Fill(values);
  const Streams streams = EncodePage(*codec, source.view()).value();
  EXPECT_FALSE(IsExact(streams));
  EXPECT_TRUE(DecodePage(*codec, streams, streams.size(), target.span()).ok());
  return {std::move(values), target.Values()};
}

constexpr int kChannels = 64, kTokens = 256;

TEST(Acceptance, A9ConstantChannels) {
  for (const char* spec : kSpecs) {
    const Errors errors = RoundTrip(spec, PaintValues(Input::kConstant, kTokens, kChannels, 1), kChannels);
    for (int c = 0; c < kChannels; ++c) {
      // What FP16 metadata, or steps of 2^-16 of the page's greatest value, can tell.
      EXPECT_LE(errors.Greatest(kChannels, c), 2e-3 + 0x1p-11 * std::fabs(errors.values[std::size_t(c)])) << spec;
    }
  }
}

// The K bias of Qwen: constants 1000 times the range. Errors follow the range.
TEST(Acceptance, A9ConstantOffset) {
  for (const char* spec : kSpecs) {
    const Errors errors = RoundTrip(spec, PaintValues(Input::kOffset, kTokens, kChannels, 2), kChannels);
    for (int c = 0; c < kChannels; ++c) EXPECT_LE(errors.Greatest(kChannels, c), 0.05 * 0.25) << spec << " " << c;
  }
}

TEST(Acceptance, A9OneLoudToken) {
  for (const char* spec : kSpecs) {
    const auto loud = PaintValues(Input::kLoudToken, kTokens, kChannels, 3);
    auto quiet = loud;
    for (int c = 0; c < kChannels; ++c) quiet[std::size_t(kTokens / 2 * kChannels + c)] *= 0.01f;
    const Errors with = RoundTrip(spec, loud, kChannels), without = RoundTrip(spec, quiet, kChannels);
    double energy = 0, error[2] = {};
    for (std::size_t i = 0; i < 64 * kChannels; ++i) {  // chunks that the loud token is not in
      energy += std::pow(double(quiet[i]), 2);
      error[0] += std::pow(double(without.full[i]) - quiet[i], 2);
      error[1] += std::pow(double(with.full[i]) - quiet[i], 2);
    }
    EXPECT_LT(error[1] / energy, 1e-3) << spec;
    EXPECT_LT(error[1], 10 * error[0]) << spec;
  }
}

TEST(Acceptance, A9OutlierChannels) {
  for (const char* spec : kSpecs) {
    auto values = PaintValues(Input::kLoudToken, kTokens, kChannels, 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % kChannels % 16 == 5) values[i] = 100 * values[i] + 300;
    }
    const Errors errors = RoundTrip(spec, values, kChannels);
    double energy = 0, error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % kChannels % 16 == 5) continue;
      energy += std::pow(double(values[i]), 2);
      error += std::pow(double(errors.full[i]) - values[i], 2);
    }
    EXPECT_LT(error / energy, 1e-3) << spec;
  }
}

// Between nodes the handshake compares specs and shapes (src/serve); what slips through is refused page by page.
TEST(Acceptance, A10OtherParametersAreNamed) {
  const PageAddress address{0, KvKind::kKey, 0, 1, 512, 60};
  constexpr const char* kOthers[] = {"nested", "nested:anchor=5",    "nested:recent=0", "nested:unrope=1",
                                     "lynx",   "lynx:anchor_bits=3", "lynx:streams=3",  "lynx:unrope=0"};
  for (const char* spec : kOthers) {
    for (const char* other : kOthers) {
      if (std::string(spec) == other) continue;
      PageMemory source(address, 32, ElementType::kBf16), target(address, 32, ElementType::kBf16);
      source.Fill(PaintValues(Input::kNormal, 60, 32, 4, ElementType::kBf16));
      const Streams streams = EncodePage(*MustMake(other, ShapeFor(1, 32)), source.view()).value();
      const auto before = target.bytes();
      const Status status = DecodePage(*MustMake(spec, ShapeFor(1, 32)), streams, 1, target.span());
      EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << spec << " " << other;
      const std::string name = std::string(spec).substr(0, std::string(spec).find(':'));
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      EXPECT_EQ(target.bytes(), before);
    }
  }
}

TEST(Acceptance, A10AProfileOfAnotherModelIsNamed) {
  const CacheShape shape = ShapeFor(1, 32);
  LynxProfile rows;
  for (const LayerShape& layer : shape.layers) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) rows.emplace_back(std::size_t(layer.HeadDim(kind)));
  }
  const Profile profile = WriteLynxProfile(rows, shape);
  EXPECT_TRUE(MakeCodec("lynx", shape, &profile).ok());
  const Status status = MakeCodec("lynx", ShapeFor(1, 33), &profile).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalid);
  EXPECT_NE(status.message().find("another model"), std::string::npos) << status.message();
}

// A11 and A12, every truncation, bit flip and hostile payload of every codec: codec_errors_test.cc,
// golden_errors_test.cc and the fuzz targets.
TEST(Acceptance, A13OtherVersionsAreNamed) {
  const PageAddress address{0, KvKind::kKey, 0, 1, 512, 60};
  for (const char* spec : kSpecs) {
    const auto codec = MustMake(spec, ShapeFor(1, 32));
    PageMemory source(address, 32, ElementType::kBf16), target(address, 32, ElementType::kBf16);
    source.Fill(PaintValues(Input::kNormal, 60, 32, 4, ElementType::kBf16));
    const auto before = target.bytes();
    for (int version : {0, 2, 255}) {
      Streams streams = EncodePage(*codec, source.view()).value();
      streams[0][2] = std::byte(version);
      const Status status = DecodePage(*codec, streams, 1, target.span());
      EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
      EXPECT_NE(status.message().find("version " + std::to_string(version)), std::string::npos) << status.message();
      EXPECT_EQ(target.bytes(), before);
    }
  }
}

}  // namespace
}  // namespace lynx::testing
