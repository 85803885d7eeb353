// The kernels on a GPU against the codecs: the same bytes. Skipped where there is none.
#include <gtest/gtest.h>

#include "codec/codec_cuda.h"
#include "codec/page_stream.h"
#include "codec/paged_memory_test.h"

namespace lynx::testing {
namespace {

std::span<const std::byte> BytesOf(const auto& values) { return std::as_bytes(std::span(values)); }

// A PagedMemory on the GPU.
struct PagedCopy {
  explicit PagedCopy(PagedMemory& memory)
      : bytes(CudaBuffer::Of(memory.bytes()).value()), table(CudaBuffer::Of(BytesOf(memory.table())).value()) {}
  PagedCache Of(const PagedMemory& memory) const {
    PagedCache cache = memory.strides();
    cache.base = bytes.data();
    cache.block_table = reinterpret_cast<const std::int32_t*>(table.data());
    return cache;
  }
  CudaBuffer bytes, table;
};

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status ready = CudaReady(); !ready.ok()) GTEST_SKIP() << ready.ToString();
  }
};
class LynxGpu : public OnGpu {};
class CodecGpu : public OnGpu, public ::testing::WithParamInterface<const char*> {};

TEST_P(CodecGpu, DecodesAsTheCodecDoes) {
  for (const PagedCase& each : kPagedCases) {
    const int cache_heads = each.heads + 1;
    const CacheShape shape = RopeShapeFor(cache_heads, each.head_dim);
    const auto gpu = CudaCodec::Make(GetParam(), shape).value();
    const PageAddress address = each.address(cache_heads);
    PageMemory page(address, each.head_dim, ElementType::kBf16);
    page.Fill(PaintValues(each.input, each.tokens, each.heads * each.head_dim, 11, ElementType::kBf16));
    PageView view = page.view();
    view.tokens_after = each.tokens_after;
    const Streams streams = EncodePage(gpu->codec(), view).value();
    std::vector<CudaBuffer> on_gpu;
    for (const auto& stream : streams) on_gpu.push_back(CudaBuffer::Of(stream).value());
    auto scratch = ScratchFor(gpu->codec(), address, each.head_dim);
    for (std::size_t count = 1; count <= streams.size(); ++count) {
      SCOPED_TRACE(::testing::Message() << each.heads << "x" << each.head_dim << " from " << each.first_token << ", "
                                        << each.tokens << " tokens, " << count << " streams");
      PageMemory expected(address, each.head_dim, ElementType::kBf16);
      ASSERT_TRUE(DecodePage(gpu->codec(), streams, count, expected.span()).ok());
      PagedMemory paged(each.first_token + each.tokens, cache_heads, each.head_dim, 16);
      const PagedCopy copy(paged);
      const std::vector<std::span<const std::byte>> prefix(streams.begin(), streams.begin() + std::ptrdiff_t(count));
      std::vector<const std::byte*> pointers;
      for (std::size_t k = 0; k < count; ++k) pointers.push_back(on_gpu[k].data());
      const std::vector<DevicePage> pages = {gpu->Open(prefix, pointers, address, scratch).value()};
      const CudaBuffer device_pages = CudaBuffer::Of(BytesOf(pages)).value();
      const PageShape greatest{address.kind, each.heads, each.head_dim, each.tokens};
      const CudaBuffer work = CudaBuffer::Make(gpu->DecodeWorkBytes(greatest) + 16).value();
      std::vector<std::uint32_t> ok = {1};
      const CudaBuffer device_ok = CudaBuffer::Of(BytesOf(ok)).value();
      ASSERT_TRUE(gpu->Decode({reinterpret_cast<const DevicePage*>(device_pages.data()), 1, each.layer, greatest},
                              copy.Of(paged), {work.data(), reinterpret_cast<std::uint32_t*>(device_ok.data())},
                              nullptr)
                      .ok());
      ASSERT_TRUE(CudaWait(nullptr).ok());
      ASSERT_TRUE(device_ok.CopyOut(std::as_writable_bytes(std::span(ok))).ok());
      EXPECT_EQ(ok[0], 1u);
      PagedMemory wanted = paged;
      wanted.Fill(address, each.head_dim, expected.Bits());
      ASSERT_TRUE(copy.bytes.CopyOut(paged.bytes()).ok());
      EXPECT_EQ(paged.bytes(), wanted.bytes());
    }
  }
}

// One page: the payloads of its streams, or none when it travels exactly.
Streams EncodeOnGpu(const CudaCodec& gpu, const PageView& view, const PagedCache& cache) {
  const PageAddress& address = view.address;
  const PageShape greatest{address.kind, address.head_count, view.head_dim, address.token_count};
  std::vector<std::uint32_t> told = {0, 0};  // exact, length of payload 0
  const CudaBuffer device_told = CudaBuffer::Of(BytesOf(told)).value();
  std::vector<DeviceTarget> targets = {gpu.Target(address, view.tokens_after).value()};
  targets[0].exact = reinterpret_cast<std::uint32_t*>(device_told.data());
  targets[0].anchor_bytes = targets[0].exact + 1;
  const int count = gpu.codec().info().stream_count;
  std::vector<CudaBuffer> payloads;
  for (int k = 0; k < count; ++k) {
    payloads.push_back(CudaBuffer::Make(gpu.codec().MaxBytes(greatest, k)).value());
    targets[0].payloads[k] = payloads.back().data();
  }
  const CudaBuffer device_targets = CudaBuffer::Of(BytesOf(targets)).value();
  const CudaBuffer work = CudaBuffer::Make(gpu.EncodeWorkBytes(greatest) + 16).value();
  EXPECT_TRUE(gpu.Encode({reinterpret_cast<const DeviceTarget*>(device_targets.data()), 1, address.layer, greatest},
                         cache, work.data(), nullptr)
                  .ok());
  EXPECT_TRUE(CudaWait(nullptr).ok());
  EXPECT_TRUE(device_told.CopyOut(std::as_writable_bytes(std::span(told))).ok());
  Streams streams;
  for (int k = 0; k < count && told[0] == 0; ++k) {
    const bool varies = k == 0 && gpu.EncodeWorkBytes(greatest) > 0;
    streams.emplace_back(varies ? told[1] : gpu.EncodedBytes(targets[0].dims, k));
    EXPECT_TRUE(payloads[std::size_t(k)].CopyOut(streams.back()).ok());
  }
  return streams;
}

void ExpectSameEncoding(const CudaCodec& gpu, const PagedCase& each, KvKind kind, int cache_heads) {
  SCOPED_TRACE(::testing::Message() << each.heads << "x" << each.head_dim << " from " << each.first_token << ", "
                                    << each.tokens << " tokens");
  PageAddress address = each.address(cache_heads);
  address.kind = kind;
  PageMemory page(address, each.head_dim, ElementType::kBf16);
  page.Fill(PaintValues(each.input, each.tokens, each.heads * each.head_dim, 23, ElementType::kBf16));
  PageView view = page.view();
  view.tokens_after = each.tokens_after;
  Streams expected = EncodePage(gpu.codec(), view).value();
  if (IsExact(expected)) expected.clear();
  for (auto& stream : expected) stream.erase(stream.begin(), stream.begin() + kPageStreamHeaderBytes);
  PagedMemory paged(each.first_token + each.tokens, cache_heads, each.head_dim, 32);
  paged.Fill(address, each.head_dim, page.Bits());
  const PagedCopy copy(paged);
  EXPECT_EQ(EncodeOnGpu(gpu, view, copy.Of(paged)), expected);
}

TEST_P(CodecGpu, EncodesAsTheCodecDoes) {
  for (const PagedCase& each : kPagedCases) {
    const auto gpu = CudaCodec::Make(GetParam(), RopeShapeFor(each.heads + 1, each.head_dim)).value();
    ExpectSameEncoding(*gpu, each, KvKind::kKey, each.heads + 1);
  }
}

TEST_F(LynxGpu, EncodesByAProfile) {
  for (PagedCase each : kPagedCases) {
    each.layer = 0;
    const CacheShape shape = RopeShapeFor(each.heads + 1, each.head_dim);
    const Profile profile = ProfileFor(shape);
    const auto gpu = CudaCodec::Make("lynx", shape, &profile).value();
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) ExpectSameEncoding(*gpu, each, kind, each.heads + 1);
  }
}

TEST_F(LynxGpu, LeavesExactStreamsToTheHost) {
  const auto gpu = CudaCodec::Make("lynx:exact=1", RopeShapeFor(1, 8)).value();
  const CudaPages<DeviceTarget> pages = {nullptr, 1, 0, {KvKind::kKey, 1, 8, 256}};
  EXPECT_EQ(gpu->Encode(pages, {}, nullptr, nullptr).code(), ErrorCode::kUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Specs, CodecGpu,
                         ::testing::Values("nested", "nested:anchor=3,recent=100", "nested:anchor=5,unrope=1", "paper",
                                           "paper127:alpha=4", "lynx", "lynx:anchor_bits=4.5,streams=3",
                                           "lynx:anchor_bits=1.2,unrope=0"));

}  // namespace
}  // namespace lynx::testing
