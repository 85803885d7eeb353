// GB/s of BF16 that kernels for a GPU write or read, and the ratio to a copy inside device memory of as many bytes.
#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/random.h"
#include "codec/codec_cuda.h"

namespace lynx {
namespace {

constexpr int kTokens = 4096, kHeads = 8, kHeadDim = 128, kBlockTokens = 16, kRounds = 20;

CacheShape Shape() {
  CacheShape shape;
  shape.layers.push_back({kHeads, kHeadDim, kHeadDim, {RopePairing::kNeox, 0, kHeadDim, {}}});
  for (int pair = 0; pair < kHeadDim / 2; ++pair) {
    shape.layers[0].rope.radians_per_token.push_back(1.0f / float(1 + 3 * pair));
  }
  return shape;
}

// Milliseconds per call.
template <typename Run>
double Measure(Run run) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  run();
  cudaEventRecord(begin);
  for (int i = 0; i < kRounds; ++i) run();
  cudaEventRecord(end);
  cudaEventSynchronize(end);
  float milliseconds = 0.0f;
  cudaEventElapsedTime(&milliseconds, begin, end);
  return milliseconds / kRounds;
}

struct Memory {
  std::vector<CudaBuffer> kept;
  std::byte* Take(std::size_t bytes) {
    kept.push_back(CudaBuffer::Make(bytes).value());
    return kept.back().data();
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    kept.push_back(CudaBuffer::Of(std::as_bytes(std::span(values))).value());
    return reinterpret_cast<T*>(kept.back().data());
  }
};

PagedCache MakeCache(Memory* memory) {
  PagedCache cache;
  cache.block_tokens = kBlockTokens;
  cache.head_stride = 2 * kHeadDim;
  cache.token_stride = kHeads * cache.head_stride;
  cache.block_stride = kBlockTokens * cache.token_stride;
  std::vector<std::int32_t> table;
  for (int block = 0; block < kTokens / kBlockTokens; ++block) table.push_back(kTokens / kBlockTokens - 1 - block);
  cache.block_table = memory->Put(table);
  Random random(1);
  std::vector<std::uint16_t> elements(std::size_t(kTokens) * kHeads * kHeadDim);
  for (auto& element : elements) element = FloatToBf16(float(random.Unit() + random.Unit() + random.Unit() - 1.5));
  cache.base = reinterpret_cast<std::byte*>(memory->Put(elements));
  return cache;
}

void Print(const std::string& what, double milliseconds, double copy_milliseconds) {
  const double bytes = 2.0 * kTokens * kHeads * kHeadDim;
  std::printf("%-24s %8.1f GB/s  %5.2f of a copy\n", what.c_str(), bytes / milliseconds / 1e6,
              copy_milliseconds / milliseconds);
}

void Bench(const std::string& spec, double copy_milliseconds) {
  Memory memory;
  const CacheShape shape = Shape();
  const auto gpu = CudaCodec::Make(spec, shape).value();
  const PagedCache cache = MakeCache(&memory);
  const int heads = gpu->codec().info().heads_per_page == 0 ? kHeads : gpu->codec().info().heads_per_page;
  const PageShape greatest{KvKind::kKey, heads, kHeadDim, kPageTokens};
  std::vector<std::byte> scratch(gpu->codec().ScratchBytes(greatest)), rows(kPageTokens * heads * kHeadDim * 2);
  Random random(2);
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    StoreLittle(FloatToBf16(float(random.Unit() + random.Unit() + random.Unit() - 1.5)), rows.data() + i);
  }
  std::vector<DevicePage> pages;
  std::vector<DeviceTarget> targets;
  for (const PageAddress& address : PagesOf(shape, 0, kTokens, kPageTokens, heads)) {
    if (address.kind == KvKind::kValue) continue;
    PageView view{address, ElementType::kBf16, kHeadDim, rows.data(), 2 * heads * kHeadDim, 2 * kHeadDim, 2, -1};
    std::vector<std::vector<std::byte>> streams;
    std::vector<std::span<std::byte>> buffers;
    for (int k = 0; k < 2; ++k) streams.emplace_back(gpu->codec().MaxBytes(greatest, k));
    for (auto& stream : streams) buffers.emplace_back(stream);
    std::vector<std::size_t> sizes(2);
    if (!gpu->codec().Encode(view, buffers, sizes, scratch).ok()) return;
    std::vector<std::span<const std::byte>> whole;
    std::vector<const std::byte*> device;
    DeviceTarget target = gpu->Target(address, -1).value();
    target.exact = memory.Put(std::vector<std::uint32_t>{0});
    target.anchor_bytes = memory.Put(std::vector<std::uint32_t>{0});
    for (std::size_t k = 0; k < 2; ++k) {
      streams[k].resize(sizes[k]);
      whole.emplace_back(streams[k]);
      device.push_back(memory.Put(streams[k]));
      target.payloads[k] = memory.Take(gpu->codec().MaxBytes(greatest, int(k)));
    }
    pages.push_back(gpu->Open(whole, device, address, scratch).value());
    targets.push_back(target);
  }
  const CudaWork work = {memory.Take(pages.size() * gpu->DecodeWorkBytes(greatest) + 16),
                         memory.Put(std::vector<std::uint32_t>(pages.size()))};
  const CudaPages<DevicePage> decoded = {memory.Put(pages), int(pages.size()), 0, greatest};
  const CudaPages<DeviceTarget> encoded = {memory.Put(targets), int(targets.size()), 0, greatest};
  bool ok = true;
  Print(spec + " decode", Measure([&] { ok = gpu->Decode(decoded, cache, work, nullptr).ok() && ok; }),
        copy_milliseconds);
  std::byte* encode_work = memory.Take(targets.size() * gpu->EncodeWorkBytes(greatest) + 16);
  Print(spec + " encode", Measure([&] { ok = gpu->Encode(encoded, cache, encode_work, nullptr).ok() && ok; }),
        copy_milliseconds);
  if (!ok || !CudaWait(nullptr).ok()) std::printf("%s failed\n", spec.c_str());
}

int Main() {
  if (const Status ready = CudaReady(); !ready.ok()) {
    std::printf("%s\n", ready.ToString().c_str());
    return 0;
  }
  Memory memory;
  const std::size_t bytes = std::size_t{2} * kTokens * kHeads * kHeadDim;
  std::byte *from = memory.Take(bytes), *to = memory.Take(bytes);
  const double copy = Measure([&] { cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice); });
  Print("copy", copy, copy);
  for (const char* spec : {"nested", "nested:unrope=1", "paper", "paper127", "lynx", "lynx:unrope=0"}) {
    Bench(spec, copy);
  }
  return 0;
}

}  // namespace
}  // namespace lynx

int main() { return lynx::Main(); }
