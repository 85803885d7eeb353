// The kernels for GPUs, thread after thread on the CPU, against the codecs: the same bytes.
#include <gtest/gtest.h>

#include "codec/lynx_codec.h"
#include "codec/lynx_warp.h"
#include "codec/nested_codec.h"
#include "codec/nested_thread.h"
#include "codec/page_stream.h"
#include "codec/paged_memory_test.h"
#include "codec/paper_codec.h"
#include "codec/paper_thread.h"

namespace lynx::testing {
namespace {

// 32 lanes in lockstep.
struct HostWarp {
  template <class T>
  struct Lanes {
    T values[kRansLanes];
    T& operator[](int lane) { return values[lane]; }
  };
  template <class F>
  void ForEach(F f) const {
    for (int lane = 0; lane < kRansLanes; ++lane) f(lane);
  }
  template <class F>
  std::uint32_t Ballot(F f) const {
    std::uint32_t bits = 0;
    for (int lane = 0; lane < kRansLanes; ++lane) bits |= std::uint32_t(f(lane)) << lane;
    return bits;
  }
};

RopeView ViewOf(const RopeTable* rope) {
  if (rope == nullptr) return {};
  return {rope->cosines(0), rope->sines(0), rope->pairs(), rope->offset(), rope->adjacent()};
}

const LynxKernelTables& HostTables() {
  static const LynxKernelTables tables = [] {
    LynxKernelTables made;
    for (int table = 0; table < kLynxTables; ++table) made.tables[table] = LynxTables::Get()[table];
    for (int step = kLynxLeastStep; step <= kLynxGreatestStep; ++step) {
      made.centre_steps[step - kLynxLeastStep] = EighthOctave(step - 40);
    }
    return made;
  }();
  return tables;
}

// All threads of a launch; false: the kernel found the page corrupt.
bool RunDecode(const Codec& codec, const DevicePage& page, const PagedCache& cache) {
  const auto each_chunk = [&](auto thread, const auto& job) {
    for (int chunk = 0; chunk <= page.dims.chunks(); ++chunk) {
      for (int unit = 0; unit < page.dims.channels + 5; ++unit) thread(job, 0, chunk, unit);
    }
    return true;
  };
  if (const auto* nested = dynamic_cast<const NestedCodec*>(&codec)) {
    return each_chunk(NestedDecodeThread, NestedDecodeJob{&page, cache, ViewOf(nested->RopeOf(page.dims.address)),
                                                          nested->parameters().anchor_bits});
  }
  if (const auto* paper = dynamic_cast<const PaperCodec*>(&codec)) {
    return each_chunk(PaperDecodeThread, PaperDecodeJob{&page, cache, &paper->levels(), paper->reading()});
  }
  const auto& lynx = dynamic_cast<const LynxCodec&>(codec);
  const std::size_t bytes = LynxWorkBytes(page.dims.tokens, page.dims.channels);
  std::vector<std::max_align_t> work(bytes / sizeof(std::max_align_t) + 1);
  std::uint32_t ok = 2;
  const LynxDecodeJob job{&page,
                          cache,
                          ViewOf(lynx.RopeOf(page.dims.address)),
                          &HostTables(),
                          lynx.StreamBits(),
                          reinterpret_cast<std::byte*>(work.data()),
                          bytes,
                          &ok};
  LynxDecodeWarp(HostWarp{}, job, 0);
  EXPECT_LT(ok, 2u);
  return ok == 1;
}

DevicePage DevicePageOf(const OpenedPage& opened) {
  DevicePage page;
  page.dims = opened.dims;
  page.exact = opened.exact;
  page.streams = int(opened.streams);
  for (std::size_t k = 0; k < opened.streams; ++k) {
    page.payloads[k] = opened.payloads[k].data();
    page.bytes[k] = opened.payloads[k].size();
  }
  return page;
}

// Decodes streams both ways; they must agree, and a page that is refused must stay as it was.
void ExpectSameDecoding(const Codec& codec, const Streams& streams, std::size_t count, const PageAddress& address,
                        int head_dim, int cache_heads) {
  PageMemory expected(address, head_dim, ElementType::kBf16);
  const Status status = DecodePage(codec, streams, count, expected.span());
  PagedMemory paged(address.first_token + address.token_count, cache_heads, head_dim, 16);
  const std::vector<std::byte> before = paged.bytes();
  OpenedPage opened;
  const std::vector<std::span<const std::byte>> prefix(streams.begin(), streams.begin() + std::ptrdiff_t(count));
  ASSERT_TRUE(dynamic_cast<const PageCodec&>(codec).Open(prefix, expected.span(), &opened).ok());
  const bool ok = RunDecode(codec, DevicePageOf(opened), paged.cache());
  ASSERT_EQ(ok, status.ok()) << status.ToString();
  if (!ok) {
    EXPECT_EQ(paged.bytes(), before);
    return;
  }
  EXPECT_EQ(paged.Bits(address, head_dim), expected.Bits());
  paged.Fill(address, head_dim, std::vector<std::byte>(expected.Bits().size(), std::byte{0xff}));
  EXPECT_EQ(paged.bytes(), before) << "bytes outside of the page";
}

class PagedKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(PagedKernels, DecodeAsTheCodecDoes) {
  for (const PagedCase& each : kPagedCases) {
    for (ElementType type : {ElementType::kBf16, ElementType::kF16, ElementType::kF32}) {
      const int cache_heads = each.heads + 1;
      const auto codec = MustMake(GetParam(), RopeShapeFor(cache_heads, each.head_dim, type));
      const PageAddress address = each.address(cache_heads);
      PageMemory page(address, each.head_dim, type);
      page.Fill(PaintValues(each.input, each.tokens, each.heads * each.head_dim, 11, type));
      PageView view = page.view();
      view.tokens_after = each.tokens_after;
      const Streams streams = EncodePage(*codec, view).value();
      for (std::size_t count = 1; count <= streams.size(); ++count) {
        SCOPED_TRACE(::testing::Message() << each.heads << "x" << each.head_dim << " from " << each.first_token << ", "
                                          << each.tokens << " tokens, " << count << " streams");
        ExpectSameDecoding(*codec, streams, count, address, each.head_dim, cache_heads);
      }
    }
  }
}

TEST_P(PagedKernels, ExactPagesKeepTheirBits) {
  const auto codec = MustMake(GetParam(), RopeShapeFor(2, 10));
  const PageAddress address{0, KvKind::kKey, 1, 1, 7, 40};
  PageMemory page(address, 10, ElementType::kBf16);  // filled with NaN
  ExpectSameDecoding(*codec, EncodePage(*codec, page.view()).value(), 2, address, 10, 2);
}

INSTANTIATE_TEST_SUITE_P(Specs, PagedKernels,
                         ::testing::Values("nested", "nested:anchor=3,recent=100", "nested:anchor=5,unrope=1",
                                           "nested:anchor=6,recent=0,unrope=1", "paper", "paper127", "paper127:alpha=4",
                                           "lynx", "lynx:anchor_bits=4.5,streams=3", "lynx:anchor_bits=1.2,unrope=0"));

// Payloads that no encoder writes, behind valid checksums: the same verdict, and the same values.
TEST(PagedLynx, HostilePayloadsAreJudgedAsTheCodecDoes) {
  int refused = 0, accepted = 0;
  for (const PagedCase& each : {kPagedCases[4], kPagedCases[5], kPagedCases[6], kPagedCases[7]}) {
    const auto codec = MustMake("lynx", RopeShapeFor(each.heads, each.head_dim));
    const PageAddress address = each.address(each.heads);
    PageMemory page(address, each.head_dim, ElementType::kBf16);
    page.Fill(PaintValues(each.input, each.tokens, each.heads * each.head_dim, 3, ElementType::kBf16));
    const Streams good = EncodePage(*codec, page.view()).value();
    for (int round = 0; round < 150; ++round) {
      Random random(std::uint64_t(round) + 500);
      Streams bad = {good[0]};
      const PageHeader header = OpenPageStream(good[0]).value().header;
      // The fields at the front, the end, or anywhere.
      const std::size_t payload = bad[0].size() - kPageStreamHeaderBytes;
      std::size_t at = random.Below(round % 3 == 0 ? std::min<std::size_t>(payload, 64) : payload);
      if (round % 3 == 1) at = payload - 1 - random.Below(std::min<std::size_t>(payload, 64));
      bad[0][kPageStreamHeaderBytes + at] ^= std::byte(1u << random.Below(8));
      if (round % 10 == 9) bad[0].resize(bad[0].size() - 1 - random.Below(payload));
      SealPageStream(header, bad[0]);
      SCOPED_TRACE(::testing::Message() << round << ", byte " << at);
      ExpectSameDecoding(*codec, bad, 1, address, each.head_dim, each.heads);
      PageMemory target(address, each.head_dim, ElementType::kBf16);
      (DecodePage(*codec, bad, 1, target.span()).ok() ? accepted : refused) += 1;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 5);
}

class PagedEncoding : public ::testing::TestWithParam<const char*> {};

// All threads of an encoder's launch.
void RunEncode(const Codec& codec, const DeviceTarget& page, const PagedCache& cache) {
  for (int unit = page.dims.channels + 4; unit >= 0; --unit) {
    if (const auto* nested = dynamic_cast<const NestedCodec*>(&codec)) {
      const NestedParameters& parameters = nested->parameters();
      NestedEncodeThread(
          {&page, cache, ViewOf(nested->RopeOf(page.dims.address)), parameters.anchor_bits, parameters.recent}, 0,
          unit);
    } else {
      const auto& paper = dynamic_cast<const PaperCodec&>(codec);
      PaperEncodeThread({&page, cache, &paper.levels(), paper.reading()}, 0, unit);
    }
  }
}

TEST_P(PagedEncoding, GivesTheCodecsBytes) {
  for (const PagedCase& each : kPagedCases) {
    const int cache_heads = each.heads + 1;
    const auto codec = MustMake(GetParam(), RopeShapeFor(cache_heads, each.head_dim));
    const PageAddress address = each.address(cache_heads);
    for (bool loud : {false, true}) {
      PageMemory page(address, each.head_dim, ElementType::kBf16);
      auto values = PaintValues(each.input, each.tokens, each.heads * each.head_dim, 23, ElementType::kBf16);
      if (loud) values[values.size() / 2] = 20000.0f;
      page.Fill(values);
      PageView view = page.view();
      view.tokens_after = each.tokens_after;
      const Streams expected = EncodePage(*codec, view).value();
      const PageHeader header = OpenPageStream(expected[0]).value().header;

      PagedMemory paged(address.first_token + address.token_count, cache_heads, each.head_dim, 32);
      paged.Fill(address, each.head_dim, page.Bits());
      Streams streams;
      std::vector<std::span<std::byte>> buffers;
      std::vector<std::size_t> payload_bytes, sizes(expected.size());
      std::uint32_t exact = 0;
      DeviceTarget target;
      target.dims = {each.tokens, each.heads * each.head_dim, address, ElementType::kBf16, each.tokens_after};
      target.exact = &exact;
      const PageShape shape{address.kind, each.heads, each.head_dim, each.tokens};
      for (std::size_t k = 0; k < expected.size(); ++k) {
        streams.emplace_back(codec->MaxBytes(shape, int(k)), std::byte{0xaa});
        payload_bytes.push_back(expected[k].size() - kPageStreamHeaderBytes);
      }
      for (std::size_t k = 0; k < expected.size(); ++k) {
        buffers.emplace_back(streams[k]);
        target.payloads[k] = streams[k].data() + kPageStreamHeaderBytes;
      }
      RunEncode(*codec, target, paged.cache());
      SCOPED_TRACE(::testing::Message() << each.heads << "x" << each.head_dim << " from " << each.first_token << ", "
                                        << each.tokens << " tokens" << (loud ? ", loud" : ""));
      ASSERT_EQ(exact == 1, header.exact);
      if (exact == 1) continue;
      ASSERT_TRUE(dynamic_cast<const PageCodec&>(*codec).Seal(view, payload_bytes, buffers, sizes).ok());
      for (std::size_t k = 0; k < expected.size(); ++k) {
        streams[k].resize(sizes[k]);
        EXPECT_EQ(streams[k], expected[k]) << "stream " << k;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, PagedEncoding,
                         ::testing::Values("nested", "nested:anchor=3,recent=100", "nested:anchor=5,unrope=1",
                                           "nested:anchor=6,recent=0,unrope=1", "paper", "paper127",
                                           "paper127:alpha=4"));

}  // namespace
}  // namespace lynx::testing
