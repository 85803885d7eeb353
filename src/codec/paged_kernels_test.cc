// The kernels for GPUs, thread after thread on the CPU, against the codecs: the same bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>

#include "codec/lynx_codec.h"
#include "codec/lynx_encode_warp.h"
#include "codec/lynx_warp.h"
#include "codec/nested_codec.h"
#include "codec/nested_thread.h"
#include "codec/page_stream.h"
#include "codec/paged_memory_test.h"
#include "codec/paper_codec.h"
#include "codec/paper_thread.h"

namespace lynx::testing {
namespace {

// 32 lanes in lockstep; in an order of their own within a step, lane 0 late, so that a lane that needs what another one
// writes in the same step is found out.
struct HostWarp {
  template <class T>
  struct Lanes {
    T values[kRansLanes];
    T& operator[](int lane) { return values[lane]; }
  };
  template <class F>
  void ForEach(F f) const {
    for (int i = 0; i < kRansLanes; ++i) f((13 * i + 7) % kRansLanes);
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
  static const LynxKernelTables tables;
  return tables;
}

// All threads of a launch, the last first; per page whether the kernel found it whole.
std::vector<std::uint32_t> RunDecode(const Codec& codec, const std::vector<DevicePage>& pages,
                                     const PagedCache& cache) {
  const PageAddress& address = pages[0].dims.address;
  const int count = int(pages.size());
  int chunks = 0, tokens = 0, channels = 0;
  for (const DevicePage& page : pages) {
    chunks = std::max(chunks, page.dims.chunks());
    tokens = std::max(tokens, page.dims.tokens);
    channels = std::max(channels, page.dims.channels);
  }
  std::vector<std::uint32_t> ok(pages.size(), 1);
  const auto each_thread = [&](auto thread, const auto& job) {
    for (int page = count - 1; page >= 0; --page) {
      for (int chunk = chunks; chunk >= 0; --chunk) {
        for (int unit = channels + 4; unit >= 0; --unit) thread(job, page, chunk, unit);
      }
    }
  };
  if (const auto* nested = dynamic_cast<const NestedCodec*>(&codec)) {
    each_thread(NestedDecodeThread, NestedDecodeJob{pages.data(), cache, ViewOf(nested->RopeOf(address)),
                                                    nested->parameters().anchor_bits});
  } else if (const auto* paper = dynamic_cast<const PaperCodec*>(&codec)) {
    each_thread(PaperDecodeThread, PaperDecodeJob{pages.data(), cache, &paper->levels(), paper->reading()});
  } else {
    const auto& lynx = dynamic_cast<const LynxCodec&>(codec);
    const std::size_t bytes = LynxWorkBytes(tokens, channels);
    std::vector<std::max_align_t> work(pages.size() * bytes / sizeof(std::max_align_t) + 1);
    auto* at = reinterpret_cast<std::byte*>(work.data());
    ok.assign(pages.size(), 2);
    const LynxDecodeJob job{pages.data(), cache,    ViewOf(lynx.RopeOf(address)), &HostTables(), lynx.StreamBits(), at,
                            bytes,        ok.data()};
    for (int page = count - 1; page >= 0; --page) LynxDecodeWarp(HostWarp{}, job, page);
  }
  return ok;
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
  const std::vector<std::uint32_t> ok = RunDecode(codec, {DevicePageOf(opened)}, paged.cache());
  ASSERT_EQ(ok[0], status.ok() ? 1u : 0u) << status.ToString();
  if (!status.ok()) {
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

// Pages of a layer, one of them short, one exact.
TEST_P(PagedKernels, PagesOfOneLaunchDoNotMeet) {
  constexpr int kHeads = 3, kHeadDim = 16, kTokens = 530;
  const CacheShape shape = RopeShapeFor(kHeads, kHeadDim);
  const auto codec = MustMake(GetParam(), shape);
  PagedMemory paged(kTokens, kHeads, kHeadDim, 16), expected(kTokens, kHeads, kHeadDim, 16);
  std::list<Streams> streams;  // pages point into them
  std::vector<DevicePage> pages;
  for (const PageAddress& address : PagesOf(shape, 0, kTokens, 256, codec->info().heads_per_page)) {
    if (address.layer != 1 || address.kind != KvKind::kKey) continue;
    PageMemory page(address, kHeadDim, ElementType::kBf16);  // exact unless filled
    if (streams.size() != 1) {
      page.Fill(PaintValues(Input::kNormal, address.token_count, address.head_count * kHeadDim, streams.size() + 1,
                            ElementType::kBf16));
    }
    streams.push_back(EncodePage(*codec, page.view()).value());
    ASSERT_TRUE(DecodePage(*codec, streams.back(), 2, page.span()).ok());
    expected.Fill(address, kHeadDim, page.Bits());
    const std::vector<std::span<const std::byte>> prefix(streams.back().begin(), streams.back().begin() + 2);
    OpenedPage opened;
    ASSERT_TRUE(dynamic_cast<const PageCodec&>(*codec).Open(prefix, page.span(), &opened).ok());
    pages.push_back(DevicePageOf(opened));
  }
  EXPECT_EQ(RunDecode(*codec, pages, paged.cache()), std::vector<std::uint32_t>(pages.size(), 1));
  EXPECT_EQ(paged.bytes(), expected.bytes());
}

INSTANTIATE_TEST_SUITE_P(Specs, PagedKernels,
                         ::testing::Values("nested", "nested:anchor=3,recent=100", "nested:anchor=5,unrope=1",
                                           "nested:anchor=6,recent=0,unrope=1", "paper", "paper127", "paper127:alpha=4",
                                           "lynx", "lynx:anchor_bits=4.5,streams=3", "lynx:anchor_bits=1.2,unrope=0"));

// Payloads that no encoder writes, behind valid checksums: the same verdict, and the same values.
TEST(PagedLynx, HostilePayloadsAreJudgedAsTheCodecDoes) {
  int refused = 0, accepted = 0;
  for (const PagedCase& each :
       {kPagedCases[2], kPagedCases[3], kPagedCases[4], kPagedCases[5], kPagedCases[6], kPagedCases[7]}) {
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

// All threads of an encoder's launch, the last first.
void RunEncode(const Codec& codec, const std::vector<DeviceTarget>& pages, const PagedCache& cache) {
  const PageAddress& address = pages[0].dims.address;
  const int count = int(pages.size());
  int tokens = 0, channels = 0;
  for (const DeviceTarget& page : pages) {
    tokens = std::max(tokens, page.dims.tokens);
    channels = std::max(channels, page.dims.channels);
  }
  const auto each_thread = [&](auto thread, const auto& job) {
    for (int page = count - 1; page >= 0; --page) {
      for (int unit = channels + 4; unit >= 0; --unit) thread(job, page, unit);
    }
  };
  if (const auto* nested = dynamic_cast<const NestedCodec*>(&codec)) {
    const NestedParameters& parameters = nested->parameters();
    each_thread(NestedEncodeThread, NestedEncodeJob{pages.data(), cache, ViewOf(nested->RopeOf(address)),
                                                    parameters.anchor_bits, parameters.recent});
  } else if (const auto* paper = dynamic_cast<const PaperCodec*>(&codec)) {
    each_thread(PaperEncodeThread, PaperEncodeJob{pages.data(), cache, &paper->levels(), paper->reading()});
  } else {
    const auto& lynx = dynamic_cast<const LynxCodec&>(codec);
    const std::size_t bytes = LynxEncodeWorkBytes(tokens, channels);
    std::vector<std::max_align_t> work(pages.size() * bytes / sizeof(std::max_align_t) + 1);
    std::memset(work.data(), 0xaa, work.size() * sizeof(std::max_align_t));
    const LynxEncodeJob job{pages.data(),
                            cache,
                            ViewOf(lynx.RopeOf(address)),
                            &HostTables(),
                            lynx.StreamBits(),
                            lynx.parameters().recent,
                            reinterpret_cast<std::byte*>(work.data()),
                            bytes};
    for (int page = count - 1; page >= 0; --page) LynxEncodeWarp(HostWarp{}, job, page);
  }
}

// Encodes pages of one layer and kind both ways, those of the kernels in one launch; returns how many travel exactly.
int ExpectSameEncoding(const Codec& codec, const std::vector<PageView>& views, const PagedCache& cache) {
  const auto& page_codec = dynamic_cast<const PageCodec&>(codec);
  const auto* lynx = dynamic_cast<const LynxCodec*>(&codec);
  const std::size_t count = std::size_t(codec.info().stream_count);
  std::vector<Streams> streams(views.size());
  std::vector<std::uint32_t> exact(views.size()), anchor_bytes(views.size());
  std::vector<DeviceTarget> targets(views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    const PageAddress& address = views[i].address;
    const int head_dim = views[i].head_dim, tokens = address.token_count;
    PageDims& dims = targets[i].dims;
    dims = {tokens, address.head_count * head_dim, address, ElementType::kBf16, views[i].tokens_after};
    targets[i].exact = &exact[i];
    targets[i].anchor_bytes = &anchor_bytes[i];
    if (lynx != nullptr && PartsOf(dims).coded > 0) targets[i].rate = lynx->RateOf(dims);
    for (std::size_t k = 0; k < count; ++k) {
      const PageShape shape{address.kind, address.head_count, head_dim, tokens};
      streams[i].emplace_back(codec.MaxBytes(shape, int(k)), std::byte{0xaa});
      targets[i].payloads[k] = streams[i][k].data() + kPageStreamHeaderBytes;
    }
  }
  RunEncode(codec, targets, cache);
  for (std::size_t i = 0; i < views.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "page " << i << " of " << views.size());
    const Streams expected = EncodePage(codec, views[i]).value();
    EXPECT_EQ(exact[i] == 1, IsExact(expected));
    if (exact[i] == 1) continue;
    std::vector<std::span<std::byte>> buffers(streams[i].begin(), streams[i].end());
    std::vector<std::size_t> payload_bytes, sizes(count);
    for (const auto& stream : expected) payload_bytes.push_back(stream.size() - kPageStreamHeaderBytes);
    if (lynx != nullptr) payload_bytes[0] = anchor_bytes[i];
    EXPECT_TRUE(page_codec.Seal(views[i], payload_bytes, buffers, sizes).ok());
    for (std::size_t k = 0; k < count; ++k) {
      streams[i][k].resize(sizes[k]);
      EXPECT_EQ(streams[i][k], expected[k]) << "stream " << k;
    }
  }
  return int(std::count(exact.begin(), exact.end(), 1u));
}

TEST_P(PagedEncoding, GivesTheCodecsBytes) {
  for (const PagedCase& each : kPagedCases) {
    const int cache_heads = each.heads + 1;
    const auto codec = MustMake(GetParam(), RopeShapeFor(cache_heads, each.head_dim));
    const PageAddress address = each.address(cache_heads);
    for (bool loud : {false, true}) {
      SCOPED_TRACE(::testing::Message() << each.heads << "x" << each.head_dim << " from " << each.first_token << ", "
                                        << each.tokens << " tokens" << (loud ? ", loud" : ""));
      PageMemory page(address, each.head_dim, ElementType::kBf16);
      auto values = PaintValues(each.input, each.tokens, each.heads * each.head_dim, 23, ElementType::kBf16);
      if (loud) values[values.size() / 2] = 20000.0f;
      page.Fill(values);
      PageView view = page.view();
      view.tokens_after = each.tokens_after;
      PagedMemory paged(address.first_token + address.token_count, cache_heads, each.head_dim, 32);
      paged.Fill(address, each.head_dim, page.Bits());
      const int exact = ExpectSameEncoding(*codec, {view}, paged.cache());
      EXPECT_TRUE(exact == 1 || !loud);
    }
  }
}

// Pages of a layer in one launch: every shape of values, the last pages short, one of NaN.
TEST_P(PagedEncoding, PagesOfOneLaunchDoNotMeet) {
  constexpr int kHeads = 3, kHeadDim = 48, kTokens = 256 * 8 + 70;
  const auto codec = MustMake(GetParam(), RopeShapeFor(kHeads, kHeadDim));
  PagedMemory paged(kTokens, kHeads, kHeadDim, 16);
  std::list<PageMemory> memory;
  std::vector<PageView> views;
  for (int first = 0; first < kTokens; first += 256) {
    for (int head = 0; head < kHeads; ++head) {
      const PageAddress address{1, KvKind::kKey, head, 1, first, std::min(256, kTokens - first)};
      PageMemory& page = memory.emplace_back(address, kHeadDim, ElementType::kBf16);
      const Input input = kInputs[(views.size() / 2) % std::size(kInputs)];
      if (views.size() != 7) {
        page.Fill(PaintValues(input, address.token_count, kHeadDim, views.size(), ElementType::kBf16));
      }
      paged.Fill(address, kHeadDim, page.Bits());
      views.push_back(page.view());
      views.back().tokens_after = kTokens - first - address.token_count;
    }
  }
  const int exact = ExpectSameEncoding(*codec, views, paged.cache());
  EXPECT_GE(exact, 1);
  EXPECT_LT(exact, int(views.size()) / 2);
}

INSTANTIATE_TEST_SUITE_P(Specs, PagedEncoding,
                         ::testing::Values("nested", "nested:anchor=3,recent=100", "nested:anchor=5,unrope=1",
                                           "nested:anchor=6,recent=0,unrope=1", "paper", "paper127", "paper127:alpha=4",
                                           "lynx", "lynx:anchor_bits=4.5,streams=3", "lynx:anchor_bits=1.2,unrope=0",
                                           "lynx:anchor_bits=3,recent=200"));

TEST(PagedLynx, EncodesByAProfile) {
  constexpr int kHeads = 2, kHeadDim = 40, kTokens = 600;
  const CacheShape shape = RopeShapeFor(kHeads, kHeadDim);
  const Profile profile = ProfileFor(shape);
  for (const char* spec : {"lynx", "lynx:anchor_bits=4.5,streams=3", "lynx:anchor_bits=1.2"}) {
    SCOPED_TRACE(spec);
    const auto codec = MakeCodec(spec, shape, &profile).value();
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      PagedMemory paged(kTokens, kHeads, kHeadDim, 16);
      std::list<PageMemory> memory;
      std::vector<PageView> views;
      for (int first = 0; first < kTokens; first += 256) {
        const PageAddress address{0, kind, 0, kHeads, first, std::min(256, kTokens - first)};
        PageMemory& page = memory.emplace_back(address, kHeadDim, ElementType::kBf16);
        page.Fill(
            PaintValues(Input::kNormal, address.token_count, kHeads * kHeadDim, views.size() + 40, ElementType::kBf16));
        paged.Fill(address, kHeadDim, page.Bits());
        views.push_back(page.view());
        views.back().tokens_after = kTokens - first - address.token_count;
      }
      EXPECT_EQ(ExpectSameEncoding(*codec, views, paged.cache()), 0);
    }
  }
}

// Pages about as long as their elements, where it depends on every byte whether they travel exactly.
TEST(PagedLynx, SmallPages) {
  int exact = 0;
  constexpr int kRounds = 600;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    Random random(std::uint64_t(round) + 900);
    const int heads = 1 + int(random.Below(3)), head_dim = 1 + int(random.Below(16));
    const char* specs[] = {"lynx", "lynx:anchor_bits=4.5,streams=3", "lynx:anchor_bits=1.2,recent=3"};
    const auto codec = MustMake(specs[round % 3], RopeShapeFor(heads, head_dim));
    const PageAddress address{0,     KvKind(random.Below(2)),  0,
                              heads, 2 * int(random.Below(4)), 1 + int(random.Below(20))};
    PageMemory page(address, head_dim, ElementType::kBf16);
    page.Fill(PaintValues(kInputs[random.Below(std::size(kInputs))], address.token_count, heads * head_dim,
                          std::uint64_t(round), ElementType::kBf16));
    PageView view = page.view();
    view.tokens_after = int(random.Below(5)) - 1;
    PagedMemory paged(address.first_token + address.token_count, heads, head_dim, 16);
    paged.Fill(address, head_dim, page.Bits());
    exact += ExpectSameEncoding(*codec, {view}, paged.cache());
  }
  EXPECT_GT(exact, kRounds / 10);
  EXPECT_LT(exact, kRounds * 9 / 10);
}

}  // namespace
}  // namespace lynx::testing
