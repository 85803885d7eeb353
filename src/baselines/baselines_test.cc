// What every baseline owes: shapes, layouts, exact pages, and errors instead of crashes on hostile bytes.
#include "baselines/baselines.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {
namespace {

constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kF16, ElementType::kF32};

// Every way that a baseline has of writing its payload.
const std::string kSpecs[] = {"fp8:scale=0",
                              "fp8",
                              "fp8:scale=2",
                              "kivi",
                              "kivi:bits=2,group=8,window=48",
                              "kvquant",
                              "kvquant:bits=4,outliers=0.1",
                              "kvquant:bits=2,outliers=0",
                              "quantspec",
                              "quantspec:group=32,buffer=0",
                              "cachegen",
                              "cachegen:cdf=1",
                              "cachegen:delta=0",
                              "cachegen:delta=0,cdf=1",
                              "turboquant",
                              "turboquant:bits=1",
                              "splitzip",
                              "splitzip:entropy=0",
                              "paper-ablation",
                              "paper-ablation:alpha=0,scale=127,chunk=0",
                              "paper-ablation:page=0,chunk=7,coded=1",
                              "paper-ablation:page=0,chunk=0,split=0",
                              "paper-ablation:split=0,coded=1"};

std::unique_ptr<Codec> Make(std::string_view spec, const CacheShape& shape) {
  auto codec = MakeBaseline(spec, shape);
  LYNX_CHECK(codec.ok());
  return std::move(codec).value();
}

// ShapeFor with rotated K, where a head has pairs.
CacheShape Rotated(int heads, int head_dim, ElementType type = ElementType::kBf16) {
  CacheShape shape = ShapeFor(heads, head_dim, type);
  for (LayerShape& layer : shape.layers) {
    if (head_dim < 2) continue;
    layer.rope = {RopePairing::kNeox, head_dim % 2, head_dim / 2 * 2, {}};
    for (int pair = 0; pair < head_dim / 2; ++pair) layer.rope.radians_per_token.push_back(1.0f / float(1 + 3 * pair));
  }
  return shape;
}

Streams MustEncode(const Codec& codec, const PageMemory& source, int tokens_after = -1) {
  PageView view = source.view();
  view.tokens_after = tokens_after;
  auto streams = EncodePage(codec, view);
  LYNX_CHECK(streams.ok());
  return std::move(streams).value();
}

TEST(Baselines, EveryShapeComesBack) {
  for (const std::string& spec : kSpecs) {
    for (int head_dim : {1, 3, 64, 80, 576}) {
      for (int heads : {1, 3}) {
        if (heads > 1 && head_dim > 80) continue;
        for (int tokens : {1, 2, 31, 33, 256}) {
          for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
            for (int first_token : {0, 512}) {
              SCOPED_TRACE(spec + " " + std::to_string(heads) + " x " + std::to_string(head_dim) + ", " +
                           std::to_string(tokens) + " tokens from " + std::to_string(first_token));
              const PageAddress address{1, kind, 0, heads, first_token, tokens};
              const auto codec = Make(spec, Rotated(heads, head_dim));
              PageMemory source(address, head_dim, ElementType::kBf16);
              source.Fill(PaintValues(Input::kNormal, tokens, heads * head_dim, 7, ElementType::kBf16));
              const Streams streams = MustEncode(*codec, source, 20);
              for (std::size_t count = 1; count <= streams.size(); ++count) {
                PageMemory target(address, head_dim, ElementType::kBf16);
                const Status status = DecodePage(*codec, streams, count, target.span());
                ASSERT_TRUE(status.ok()) << status.ToString();
                for (float value : target.Values()) ASSERT_TRUE(std::isfinite(value));
              }
            }
          }
        }
      }
    }
  }
}

// A2: a latent cache has K only.
TEST(Baselines, LatentCache) {
  CacheShape shape;
  shape.layers.assign(2, LayerShape{1, 576, 0, {RopePairing::kNorm, 512, 64, std::vector<float>(32, 0.1f)}});
  const PageAddress address{1, KvKind::kKey, 0, 1, 256, 40};
  for (const std::string& spec : kSpecs) {
    const auto codec = Make(spec, shape);
    PageMemory source(address, 576, ElementType::kBf16), target(address, 576, ElementType::kBf16);
    source.Fill(PaintValues(Input::kNormal, 40, 576, 1, ElementType::kBf16));
    const Streams streams = MustEncode(*codec, source);
    EXPECT_TRUE(DecodePage(*codec, streams, streams.size(), target.span()).ok()) << spec;
  }
}

TEST(Baselines, StridesAndUnwrittenSlotsDoNotMatter) {
  for (const std::string& spec : kSpecs) {
    for (ElementType type : kTypes) {
      const PageAddress address{0, KvKind::kKey, 0, 2, 256, 33};
      const auto codec = Make(spec, Rotated(2, 5, type));
      const auto values = PaintValues(Input::kNormal, 33, 10, 11, type);
      PageMemory dense(address, 5, type), decoded(address, 5, type);
      dense.Fill(values);
      const Streams expected = MustEncode(*codec, dense);
      ASSERT_TRUE(DecodePage(*codec, expected, expected.size(), decoded.span()).ok());
      for (Layout layout : kLayouts) {
        PageMemory source(address, 5, type, layout), target(address, 5, type, layout);
        source.Fill(values);
        ASSERT_EQ(MustEncode(*codec, source), expected) << spec << " layout " << int(layout);
        ASSERT_TRUE(DecodePage(*codec, expected, expected.size(), target.span()).ok());
        ASSERT_EQ(target.Bits(), decoded.Bits()) << spec << " layout " << int(layout);
      }
    }
  }
}

TEST(Baselines, NonFiniteAndHugeValuesComeBackBitForBit) {
  const PageAddress address{0, KvKind::kKey, 0, 2, 0, 33};
  for (const std::string& spec : kSpecs) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 20000.0f}) {
      const auto codec = Make(spec, Rotated(2, 3));
      auto values = PaintValues(Input::kNormal, 33, 6, 2, ElementType::kBf16);
      values[100] = bad;
      values[101] = -0.0f;
      PageMemory source(address, 3, ElementType::kBf16), target(address, 3, ElementType::kBf16);
      source.Fill(values);
      const Streams streams = MustEncode(*codec, source);
      EXPECT_EQ(streams[0].size(), kPageStreamHeaderBytes + source.Bits().size());
      ASSERT_TRUE(DecodePage(*codec, streams, 1, target.span()).ok());
      EXPECT_EQ(target.Bits(), source.Bits()) << spec;
    }
  }
}

// Large enough that no payload is an exact page.
class HostileBaseline : public ::testing::TestWithParam<std::string> {
 protected:
  HostileBaseline() : codec_(Make(GetParam(), Rotated(4, 3))), source_(kAddress, 3, ElementType::kBf16) {
    source_.Fill(PaintValues(Input::kNormal, 200, 6, 3, ElementType::kBf16));
    streams_ = MustEncode(*codec_, source_, 150);
  }

  // Whether it decodes; an error leaves the destination as it was.
  bool Accepts(const Streams& streams) {
    PageMemory target(kAddress, 3, ElementType::kF32);
    const auto before = target.bytes();
    const Status status = DecodePage(*codec_, streams, streams.size(), target.span());
    if (status.ok()) {
      for (float value : target.Values()) EXPECT_TRUE(std::isfinite(value));
      return true;
    }
    EXPECT_EQ(target.bytes(), before);
    return false;
  }

  // With lengths and checksums that fit.
  static Streams Resealed(Streams streams) {
    Reseal(&streams);
    return streams;
  }

  inline static const PageAddress kAddress{1, KvKind::kKey, 0, 2, 256, 200};
  std::unique_ptr<Codec> codec_;
  PageMemory source_;
  Streams streams_;
};

TEST_P(HostileBaseline, UndamagedIsAcceptedAndNotAnExactPage) {
  // 33 entries of a table per channel are more than what 200 tokens of 6 channels have to say.
  if (!GetParam().ends_with("cdf=1")) {
    EXPECT_FALSE(IsExact(streams_));
  }
  EXPECT_TRUE(Accepts(Resealed(streams_)));
}

TEST_P(HostileBaseline, TruncationsAndBitFlipsAreErrors) {
  for (std::size_t k = 0; k < streams_.size(); ++k) {
    for (std::size_t size = 0; size < streams_[k].size(); size += 1 + size / 64) {
      Streams damaged = streams_;
      damaged[k].resize(size);
      EXPECT_FALSE(Accepts(damaged));
    }
    for (std::size_t bit = 0; bit < 8 * streams_[k].size(); bit += 1 + bit / 512) {
      Streams damaged = streams_;
      damaged[k][bit / 8] ^= std::byte(1 << bit % 8);
      EXPECT_FALSE(Accepts(damaged));
    }
  }
}

TEST_P(HostileBaseline, OtherLengthsBehindAValidChecksumAreErrors) {
  for (std::size_t k = 0; k < streams_.size(); ++k) {
    for (std::size_t size = kPageStreamHeaderBytes; size < streams_[k].size(); ++size) {
      Streams damaged = streams_;
      damaged[k].resize(size);
      damaged[k].shrink_to_fit();
      EXPECT_FALSE(Accepts(Resealed(damaged))) << size;
    }
    Streams damaged = streams_;
    damaged[k].push_back(std::byte{0});
    EXPECT_FALSE(Accepts(Resealed(damaged)));
  }
}

TEST_P(HostileBaseline, DamageBehindAValidChecksumIsAnErrorOrSomethingFinite) {
  Random random(16);
  for (int round = 0; round < 500; ++round) {
    Streams damaged = streams_;
    for (std::vector<std::byte>& stream : damaged) {
      const std::size_t bytes = stream.size() - kPageStreamHeaderBytes;
      // Often near the beginning, where the fields are; sometimes everything.
      const std::size_t reach = random.Below(2) == 0 ? std::min<std::size_t>(bytes, 24) : bytes;
      const std::uint64_t count = random.Below(8) == 0 ? bytes : 1 + random.Below(4);
      for (std::uint64_t i = 0; i < count; ++i) {
        stream[kPageStreamHeaderBytes + random.Below(reach)] = std::byte(random.Next());
      }
    }
    Accepts(Resealed(damaged));
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileBaseline, ::testing::ValuesIn(kSpecs));

TEST(Baselines, Catalog) {
  const CacheShape shape = ShapeFor(2, 8);
  EXPECT_EQ(BaselineNames(), (std::vector<std::string>{"fp8", "kivi", "kvquant", "quantspec", "cachegen", "turboquant",
                                                       "splitzip", "paper-ablation"}));
  std::set<std::string> specs;
  for (const std::string& name : BaselineNames()) {
    EXPECT_TRUE(IsBaseline(name) && IsBaseline(name + ":bits=2"));
    const CodecInfo info = Make(name, shape)->info();
    EXPECT_EQ(info.name, name);
    EXPECT_EQ(Make(info.spec, shape)->info().spec, info.spec);
    EXPECT_FALSE(MakeCodec(name, shape).ok()) << "must not be known to nodes";
  }
  for (const std::string& name : CodecNames()) EXPECT_FALSE(IsBaseline(name));
  EXPECT_EQ(Make("kivi:bits=2", shape)->info().spec, "kivi:bits=2,group=32,window=128");
  EXPECT_EQ(MakeBaseline("zip", shape).status().code(), ErrorCode::kUnsupported);
  for (const char* spec : {"kivi:bits=1", "kivi:bits=2.5", "fp8:scale=3", "kvquant:outliers=0.2", "cachegen:bins=1",
                           "turboquant:bits=5", "paper-ablation:alpha=-1", "splitzip:"}) {
    EXPECT_EQ(MakeBaseline(spec, shape).status().code(), ErrorCode::kInvalid) << spec;
  }
  EXPECT_FALSE(MakeBaseline("kivi", CacheShape{}).ok());
}

TEST(Baselines, StreamsOfOtherBaselinesAndParametersAreRefused) {
  const PageAddress address{0, KvKind::kKey, 0, 2, 256, 40};
  PageMemory source(address, 4, ElementType::kBf16), target(address, 4, ElementType::kBf16);
  source.Fill(PaintValues(Input::kNormal, 40, 8, 1, ElementType::kBf16));
  for (const std::string& spec : kSpecs) {
    for (const std::string& other : kSpecs) {
      if (spec == other) continue;
      const Streams streams = MustEncode(*Make(other, ShapeFor(2, 4)), source);
      EXPECT_EQ(DecodePage(*Make(spec, ShapeFor(2, 4)), streams, 1, target.span()).code(), ErrorCode::kUnsupported);
    }
  }
}

}  // namespace
}  // namespace lynx::testing
