// What `nested` promises beyond every codec: one Q_full for every split, sinks, recent tokens, un-RoPE.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/bytes.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {
namespace {

constexpr int kChannels = 2 * 24;
constexpr const char* kSplits[] = {"nested:anchor=3", "nested:anchor=4", "nested:anchor=5", "nested:anchor=6"};

struct Page {
  PageMemory memory;
  Streams streams;
};

// Encodes normal values whose sinks, where `loud`, are 16 times as large.
Page Encoded(const Codec& codec, const PageAddress& address, int tokens_after, bool loud = false) {
  Page page{PageMemory(address, kChannels / 2, ElementType::kBf16), {}};
  auto values = PaintValues(Input::kNormal, address.token_count, kChannels, 5, ElementType::kBf16);
  for (int i = 0; loud && i < std::min(4 - address.first_token, address.token_count) * kChannels; ++i) values[i] *= 16;
  page.memory.Fill(values);
  PageView view = page.memory.view();
  view.tokens_after = tokens_after;
  page.streams = EncodePage(codec, view).value();
  return page;
}

std::vector<std::byte> Decoded(const Codec& codec, const Page& page, std::size_t count) {
  PageMemory target(page.memory.view().address, kChannels / 2, ElementType::kBf16);
  EXPECT_TRUE(DecodePage(codec, page.streams, count, target.span()).ok());
  return target.Bits();
}

std::size_t TokenBytes(int tokens) { return std::size_t(tokens) * kChannels * 2; }

TEST(Nested, EverySplitGivesTheSameCache) {
  for (int tokens : {5, 33, 250, 256}) {
    for (int tokens_after : {-1, 0, 40}) {
      std::vector<std::vector<std::byte>> full, anchor;
      for (const char* split : kSplits) {
        const auto codec = MustMake(split, ShapeFor(2, kChannels / 2));
        const Page page = Encoded(*codec, {0, KvKind::kKey, 0, 2, 2, tokens}, tokens_after);
        full.push_back(Decoded(*codec, page, 2));
        anchor.push_back(Decoded(*codec, page, 1));
      }
      for (const auto& each : full) EXPECT_EQ(each, full[0]) << tokens << " " << tokens_after;
      if (tokens_after < 0) {
        EXPECT_NE(anchor[0], anchor[1]);
      }
    }
  }
}

TEST(Nested, SinksAreExactAndDoNotWidenTheRanges) {
  for (int first_token : {0, 1, 3}) {
    const auto codec = MustMake("nested", ShapeFor(2, kChannels / 2));
    const PageAddress address{0, KvKind::kKey, 0, 2, first_token, 70};
    const Page quiet = Encoded(*codec, address, -1), loud = Encoded(*codec, address, -1, true);
    const std::size_t sinks = TokenBytes(4 - first_token);
    for (std::size_t count : {1, 2}) {
      const auto decoded = Decoded(*codec, loud, count), others = Decoded(*codec, quiet, count);
      const auto original = loud.memory.Bits();
      EXPECT_TRUE(std::equal(original.begin(), original.begin() + std::ptrdiff_t(sinks), decoded.begin()));
      EXPECT_TRUE(
          std::equal(decoded.begin() + std::ptrdiff_t(sinks), decoded.end(), others.begin() + std::ptrdiff_t(sinks)));
    }
  }
}

TEST(Nested, APageOfSinksTravelsExactly) {
  const auto codec = MustMake("nested", ShapeFor(2, kChannels / 2));
  const Page page = Encoded(*codec, {0, KvKind::kKey, 0, 2, 1, 3}, 0);
  EXPECT_EQ(page.streams[0].size(), kPageStreamHeaderBytes + TokenBytes(3));
  EXPECT_EQ(page.streams[1].size(), kPageStreamHeaderBytes);
  EXPECT_EQ(Decoded(*codec, page, 1), page.memory.Bits());
}

TEST(Nested, RecentTokensAreCompleteInTheAnchor) {
  for (const char* split : kSplits) {
    const auto codec = MustMake(split, ShapeFor(2, kChannels / 2));
    const PageAddress address{0, KvKind::kValue, 0, 2, 0, 150};
    const std::size_t all = Encoded(*codec, address, -1).streams[1].size();
    for (int tokens_after : {0, 10, 63, 64, 1000}) {
      const Page page = Encoded(*codec, address, tokens_after);
      const int recent = std::max(64 - tokens_after, 0);
      const auto anchor = Decoded(*codec, page, 1), full = Decoded(*codec, page, 2);
      const auto cut = std::ptrdiff_t(TokenBytes(150 - recent));
      EXPECT_TRUE(std::equal(anchor.begin() + cut, anchor.end(), full.begin() + cut)) << split << tokens_after;
      EXPECT_FALSE(std::equal(anchor.begin(), anchor.begin() + cut, full.begin()));
      if (recent == 0 || recent >= 8) {  // fewer may fit a byte of rows
        EXPECT_EQ(page.streams[1].size() == all, recent == 0);
      }
    }
    // All of a page that has fewer tokens than the window; nothing is left for the residual.
    const Page page = Encoded(*codec, {0, KvKind::kValue, 0, 2, 0, 50}, 0);
    EXPECT_EQ(page.streams[1].size(), kPageStreamHeaderBytes);
    EXPECT_EQ(Decoded(*codec, page, 1), Decoded(*codec, page, 2));
  }
}

TEST(Nested, StreamsStayWithinTheirBounds) {
  for (const char* split : kSplits) {
    for (const char* recent : {",recent=0", ",recent=7", ",recent=64", ",recent=255"}) {
      for (ElementType type : {ElementType::kBf16, ElementType::kF32}) {
        const auto codec = MustMake(std::string(split) + recent, ShapeFor(1, 3, type));
        for (int tokens : {1, 4, 5, 9, 31, 33, 255, 256}) {
          for (int first_token : {0, 2, 300}) {
            for (int tokens_after : {-1, 0, 1, 5}) {
              const PageAddress address{0, KvKind::kKey, 0, 1, first_token, tokens};
              PageMemory source(address, 3, type);
              source.Fill(PaintValues(Input::kNormal, tokens, 3, 1, type));
              PageView view = source.view();
              view.tokens_after = tokens_after;
              const Streams streams = EncodePage(*codec, view).value();  // into buffers of MaxBytes
              const PageShape shape{KvKind::kKey, 1, 3, tokens};
              for (int k = 0; k < 2; ++k) {
                EXPECT_LE(streams[std::size_t(k)].size(), codec->MaxBytes(shape, k));
                EXPECT_LE(codec->ExpectedBytes(shape, k), codec->MaxBytes(shape, k));
                if (first_token == 300 && tokens_after < 0) {
                  EXPECT_EQ(streams[std::size_t(k)].size(), codec->ExpectedBytes(shape, k));
                }
              }
            }
          }
        }
      }
    }
  }
}

// Pairs that turn by half a radian per token and carry a constant vector: constant once turned back.
TEST(Nested, UnRopeTakesTheRotationAway) {
  CacheShape shape = ShapeFor(2, kChannels / 2);
  RopeShape rope{RopePairing::kNeox, 0, kChannels / 2, std::vector<float>(kChannels / 4, 0.5f)};
  for (LayerShape& layer : shape.layers) layer.rope = rope;
  const PageAddress address{0, KvKind::kKey, 0, 2, 300, 256};
  std::vector<float> values;
  for (int token = 0; token < 256; ++token) {
    for (int c = 0; c < kChannels; ++c) {
      const int in_head = c % (kChannels / 2), pair = in_head % (kChannels / 4);
      const double angle = 0.5 * token + pair;
      values.push_back(float(8 * (in_head == pair ? std::cos(angle) : std::sin(angle))));
    }
  }
  PageMemory source(address, kChannels / 2, ElementType::kBf16), target(address, kChannels / 2, ElementType::kBf16);
  source.Fill(values);
  double nmse[2];
  for (int unrope : {0, 1}) {
    const auto codec = MustMake("nested:unrope=" + std::to_string(unrope), shape);
    const Streams streams = EncodePage(*codec, source.view()).value();
    ASSERT_TRUE(DecodePage(*codec, streams, 1, target.span()).ok());
    nmse[unrope] = Nmse(values, target.Values());
  }
  EXPECT_LT(nmse[1], nmse[0] / 100);
}

// Behind a valid checksum: what no encoder writes is refused.
TEST(Nested, ImpossibleFieldsAreRefused) {
  const auto codec = MustMake("nested", ShapeFor(2, kChannels / 2));
  const PageAddress address{0, KvKind::kKey, 0, 2, 2, 40};
  const Page page = Encoded(*codec, address, 30);
  const auto refused = [&](std::size_t at, std::uint16_t value) {
    Streams streams{page.streams[0]};
    StoreLittle(value, streams[0].data() + kPageStreamHeaderBytes + at);
    PutChecksum(&streams[0]);
    PageMemory target(address, kChannels / 2, ElementType::kBf16);
    const auto before = target.bytes();
    const Status status = DecodePage(*codec, streams, 1, target.span());
    EXPECT_EQ(target.bytes() == before, !status.ok());
    return status.code();
  };
  EXPECT_EQ(refused(0, 34), ErrorCode::kOk);  // what it was
  for (int recent : {0, 33, 35, 38, 39, 40, 255, 256, 65535}) {
    EXPECT_EQ(refused(0, std::uint16_t(recent)), ErrorCode::kCorrupt) << recent;
  }
  const std::size_t sinks = 2, base = sinks + TokenBytes(2);
  for (std::uint16_t bad : {0x7fc0, 0x7f80, 0xff80, 0x4700}) EXPECT_EQ(refused(sinks, bad), ErrorCode::kCorrupt) << bad;
  for (std::uint16_t bad : {0x7c00, 0xfc00, 0x7e00}) {
    EXPECT_EQ(refused(base, bad), ErrorCode::kCorrupt);
    EXPECT_EQ(refused(base + 2 * kChannels, bad), ErrorCode::kCorrupt);
    EXPECT_EQ(refused(base + 4 * kChannels - 2, bad), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace lynx::testing
