// Speed of every codec on one core: million elements per second of processor time, and the ratio to memcpy of the same
// BF16 data, which runs in turn with it. The pages of a whole working set are encoded and decoded one after the other,
// so that DRAM is part of the figure where the set is larger than the caches.
//
//   codec_bench [--kernels reference|SET] [codec…]     SET: an instruction set, SSE4, AVX2, AVX3 …
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/random.h"
#include "codec/catalog.h"

#ifdef LYNX_HTSCODECS
#include <htscodecs/rANS_static4x16.h>
#endif

namespace lynx {
namespace {

struct NamedShape {
  const char* name;
  int kv_heads;
  int head_dim;
  int layers;
  int tokens;
};
constexpr NamedShape kShapes[] = {
    {"SmolLM2-135M, 3 x 64, 30 layers, 2048 tokens", 3, 64, 30, 2048},
    {"Llama-3-8B, 8 x 128, 8 layers, 2048 tokens", 8, 128, 8, 2048},
};

// As most models have it.
RopeShape RopeOf(const NamedShape& shape) {
  RopeShape rope{RopePairing::kNeox, 0, shape.head_dim, {}};
  for (int pair = 0; pair < shape.head_dim / 2; ++pair) {
    rope.radians_per_token.push_back(float(std::pow(10000.0, -2.0 * pair / shape.head_dim)));
  }
  return rope;
}

// Sum of four uniform variables: close enough to normal, and cheap.
void Paint(CacheBlock* block) {
  Random random(1);
  for (int layer = 0; layer < int(block->shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = block->Rows(layer, kind);
      for (std::size_t i = 0; i < rows.size(); i += 2) {
        const std::uint64_t bits = random.Next();
        const int sum = int(bits & 0xffff) + int(bits >> 16 & 0xffff) + int(bits >> 32 & 0xffff) + int(bits >> 48);
        StoreElement(float(sum - 131070) / 37837.0f, ElementType::kBf16, rows.data() + i);
      }
    }
  }
}

struct Speed {
  double seconds = 1e30;
  double of_copy = 0;  // the copy's seconds over these
};

// The best of several runs of each, in turn. Processor time, because others may use the machine.
Speed Measure(const std::function<void()>& copy, const std::function<void()>& run) {
  constexpr int kRuns = 15;
  const auto seconds_of = [](const std::function<void()>& work) {
    const std::clock_t begin = std::clock();
    work();
    return double(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  Speed best;
  double copy_seconds = 1e30;
  for (int i = 0; i < kRuns; ++i) {
    copy_seconds = std::min(copy_seconds, seconds_of(copy));
    best.seconds = std::min(best.seconds, seconds_of(run));
  }
  best.of_copy = copy_seconds / best.seconds;
  return best;
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

void Copy(const CacheBlock& source, CacheBlock* target) {
  for (int layer = 0; layer < int(source.shape().layers.size()); ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = source.Rows(layer, kind);
      std::memcpy(target->Rows(layer, kind).data(), rows.data(), rows.size());
    }
  }
}

struct EncodedPage {
  PageAddress address;
  std::vector<std::vector<std::byte>> streams;
};

void BenchCodec(const std::string& name, const Codec& codec, const CacheBlock& source, CacheBlock* target) {
  const auto copy = [&] { Copy(source, target); };
  const double elements = double(source.bytes()) / 2;
  std::vector<EncodedPage> pages;
  std::vector<std::byte> scratch;
  for (const PageAddress& address :
       PagesOf(source.shape(), 0, source.token_count(), codec.info().page_tokens, codec.info().heads_per_page)) {
    const PageShape shape = ShapeOf(source.shape(), address);
    scratch.resize(std::max(scratch.size(), codec.ScratchBytes(shape)));
    pages.push_back({address, {}});
    for (int k = 0; k < codec.info().stream_count; ++k) pages.back().streams.emplace_back(codec.MaxBytes(shape, k));
  }
  std::vector<std::size_t> sizes(codec.info().stream_count);
  const Speed encode = Measure(copy, [&] {
    for (EncodedPage& page : pages) {
      std::vector<std::span<std::byte>> buffers;
      for (auto& stream : page.streams) buffers.emplace_back(stream.data(), stream.size());
      Must(codec.Encode(*source.Page(page.address), buffers, sizes, scratch));
    }
  });
  std::vector<double> bits(codec.info().stream_count);
  for (EncodedPage& page : pages) {
    std::vector<std::span<std::byte>> buffers(page.streams.begin(), page.streams.end());
    Must(codec.Encode(*source.Page(page.address), buffers, sizes, scratch));
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      page.streams[k].resize(sizes[k]);
      bits[k] += 8.0 * double(sizes[k]) / elements;
    }
  }
  std::printf("%-12s %6.3f", name.c_str(), bits[0]);
  if (bits.size() == 1) std::printf("        ");
  for (std::size_t k = 1; k < bits.size(); ++k) std::printf(" + %5.3f", bits[k]);
  std::printf("  encode %7.0f Melem/s (%.2f of memcpy)", elements / encode.seconds / 1e6, encode.of_copy);
  for (int streams = 1; streams <= codec.info().stream_count; ++streams) {
    const Speed decode = Measure(copy, [&] {
      for (const EncodedPage& page : pages) {
        std::vector<std::span<const std::byte>> prefix(page.streams.begin(), page.streams.begin() + streams);
        Must(codec.Decode(prefix, *target->Page(page.address), scratch));
      }
    });
    std::printf("  decode %d %7.0f (%.2f)", streams, elements / decode.seconds / 1e6, decode.of_copy);
  }
  std::printf("\n");
}

// An interleaved rANS coder for bytes as a yardstick for `lynx`: the same values as levels of 0.87 standard deviations
// (about 2.25 bits), a buffer for each page of a head.
void BenchHtscodecs([[maybe_unused]] const CacheBlock& source, [[maybe_unused]] CacheBlock* target,
                    [[maybe_unused]] int page_elements) {
#ifdef LYNX_HTSCODECS
  const auto bytes = source.Rows(0, KvKind::kKey);
  const std::size_t pages = bytes.size() / 2 / std::size_t(page_elements);
  std::vector<std::vector<unsigned char>> coded;
  std::vector<unsigned char> symbols(static_cast<std::size_t>(page_elements)), back(symbols.size());
  std::size_t coded_bytes = 0;
  for (std::size_t page = 0; page < pages; ++page) {
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      const float value = LoadElement(bytes.data() + 2 * (page * symbols.size() + i), ElementType::kBf16);
      symbols[i] = static_cast<unsigned char>(std::clamp(int(std::floor(value / 0.87f + 0.5f)), -8, 8) + 8);
    }
    constexpr int kOrder = RANS_ORDER_X32;
    unsigned size = rans_compress_bound_4x16(unsigned(symbols.size()), kOrder);
    coded.emplace_back(size);
    rans_compress_to_4x16(symbols.data(), unsigned(symbols.size()), coded.back().data(), &size, kOrder);
    coded.back().resize(size);
    coded_bytes += size;
  }
  const double elements = double(pages * symbols.size());
  const Speed decode = Measure([&] { Copy(source, target); },
                               [&] {
                                 for (auto& page : coded) {
                                   unsigned size = unsigned(back.size());
                                   rans_uncompress_to_4x16(page.data(), unsigned(page.size()), back.data(), &size);
                                 }
                               });
  std::printf("htscodecs rANS 32x16 %5.3f  decode to bytes %.0f Melem/s\n", 8.0 * double(coded_bytes) / elements,
              elements / decode.seconds / 1e6);
#endif
}

int Run(int argc, char** argv) {
#ifndef NDEBUG
  std::fprintf(stderr, "codec_bench: built with asserts on, its figures would mislead; use the release preset\n");
  return 1;
#endif
  const CodecKernels* kernels = &SimdKernels();
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--kernels") == 0 && i + 1 < argc) {
      const std::string_view wanted = argv[++i];
      kernels = wanted == "reference" ? &ReferenceKernels() : nullptr;
      for (const CodecKernels* each : AllSimdKernels()) kernels = wanted == each->name ? each : kernels;
      if (kernels == nullptr) Must(Invalid("this machine has no kernels of that name"));
    } else {
      names.push_back(argv[i]);
    }
  }
  if (names.empty()) {
    names = CodecNames();
    names.push_back("lynx:exact=1");
  }
  std::printf("kernels: %s; bits per element, one core, best of 15\n", kernels->name);
  for (const NamedShape& shape : kShapes) {
    CacheShape cache;
    cache.layers.assign(shape.layers, LayerShape{shape.kv_heads, shape.head_dim, shape.head_dim, RopeOf(shape)});
    CacheBlock source(cache, 0, shape.tokens);
    CacheBlock target(cache, 0, shape.tokens);
    Paint(&source);
    std::printf("\n%s, %.0f MB\n", shape.name, double(source.bytes()) / 1e6);
    for (const std::string& name : names) {
      auto codec = MakeCodecWith(*kernels, name, cache);
      Must(codec.status());
      BenchCodec(name, **codec, source, &target);
    }
    BenchHtscodecs(source, &target, 256 * shape.head_dim);
  }
  return 0;
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) { return lynx::Run(argc, argv); }
