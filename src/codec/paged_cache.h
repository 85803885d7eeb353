// What kernels for GPUs work on: caches in blocks, as engines page them (vLLM's [block][token][head][channel] among
// others), and pages whose payloads lie in device memory.
//
// Kernels are functions of this folder's *_thread.h and *_warp.h. A GPU runs them for all threads at once, a test on
// the CPU one after the other; both are compiled from the same one-element definitions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/float16.h"
#include "codec/lynx_reference.h"
#include "codec/page_codec.h"
#include "codec/rope_table.h"

#ifdef __CUDACC__
#define LYNX_KERNEL __host__ __device__ inline
#else
#define LYNX_KERNEL inline
#endif

namespace lynx {

// The K or the V of one layer and sequence in BF16: channel c of head h of position p lies at base + block_table[p /
// block_tokens] * block_stride + p % block_tokens * token_stride + h * head_stride + 2 c; strides in bytes, all even.
struct PagedCache {
  std::byte* base = nullptr;
  const std::int32_t* block_table = nullptr;
  int block_tokens = 0;
  std::ptrdiff_t block_stride = 0;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;

  LYNX_KERNEL std::uint16_t* At(int position, int head, int channel) const {
    std::byte* block = base + block_table[position / block_tokens] * block_stride;
    return reinterpret_cast<std::uint16_t*>(block + position % block_tokens * token_stride + head * head_stride) +
           channel;
  }
};

// A page whose checked payloads lie in device memory.
inline constexpr int kMaxDeviceStreams = 3;
struct DevicePage {
  PageDims dims;
  bool exact = false;
  int streams = 0;
  const std::byte* payloads[kMaxDeviceStreams] = {};
  std::size_t bytes[kMaxDeviceStreams] = {};
};

// A page to encode: payloads[k] has room for the codec's longest payload. *exact becomes 1 when the page can only
// travel exactly; its payloads then hold nothing of use.
struct DeviceTarget {
  PageDims dims;
  std::byte* payloads[kMaxDeviceStreams] = {};
  std::uint32_t* exact = nullptr;
  // Of `lynx` alone:
  LynxRate rate;
  std::uint32_t* anchor_bytes = nullptr;  // becomes the length of payload 0
};

// A RopeTable whose numbers lie in device memory; pairs = 0: heads are not turned.
struct RopeView {
  const float* cosines = nullptr;
  const float* sines = nullptr;
  int pairs = 0;
  int offset = 0;
  bool adjacent = false;

  LYNX_KERNEL void Turn(float* first, float* second, int token, int pair, bool inverse) const {
    const std::size_t at = std::size_t(token) * std::size_t(pairs) + std::size_t(pair);
    TurnRopePair(first, second, cosines[at], sines[at], inverse);
  }
};

// What a thread works on: two channels of a head that are turned together, or one that is not turned (count 1).
struct ChannelUnit {
  int count = 0;
  int head = 0;  // of the page
  int pair = 0;
  int in_head[2] = {};
  int in_page[2] = {};
};
LYNX_KERNEL int UnitsOfHead(const RopeView& rope, int head_dim) { return head_dim - rope.pairs; }
LYNX_KERNEL ChannelUnit UnitOf(const RopeView& rope, int head_dim, int unit) {
  ChannelUnit of;
  of.head = unit / UnitsOfHead(rope, head_dim);
  of.pair = unit % UnitsOfHead(rope, head_dim);
  of.count = of.pair < rope.pairs ? 2 : 1;
  if (of.count == 2) {
    of.in_head[0] = rope.offset + (rope.adjacent ? 2 * of.pair : of.pair);
    of.in_head[1] = of.in_head[0] + (rope.adjacent ? 1 : rope.pairs);
  } else {
    const int lone = of.pair - rope.pairs;
    of.in_head[0] = lone < rope.offset ? lone : lone + 2 * rope.pairs;
  }
  for (int i = 0; i < of.count; ++i) of.in_page[i] = of.head * head_dim + of.in_head[i];
  return of;
}

LYNX_KERNEL std::uint16_t* CacheAt(const PagedCache& cache, const PageDims& dims, int token, const ChannelUnit& unit,
                                   int i) {
  return cache.At(dims.address.first_token + token, dims.address.first_head + unit.head, unit.in_head[i]);
}

// LoadElement and StoreElement (to BF16) of an element [token][channel] of dense rows. Exact pages keep their bits.
LYNX_KERNEL std::uint16_t DenseBf16(const std::byte* rows, const PageDims& dims, int token, int channel, bool exact) {
  const std::size_t at = std::size_t(token) * std::size_t(dims.channels) + std::size_t(channel);
  if (dims.element_type == ElementType::kF32) {
    return FloatToBf16(std::bit_cast<float>(LoadLittle<std::uint32_t>(rows + 4 * at)));
  }
  const auto bits = LoadLittle<std::uint16_t>(rows + 2 * at);
  if (dims.element_type == ElementType::kF16) return FloatToBf16(F16ToFloat(bits));
  return exact ? bits : FloatToBf16(Bf16ToFloat(bits));
}

// Tokens first … end - 1 of an exact page.
LYNX_KERNEL void CopyExact(const DevicePage& page, const PagedCache& cache, const ChannelUnit& unit, int first,
                           int end) {
  for (int token = first; token < end; ++token) {
    for (int i = 0; i < unit.count; ++i) {
      *CacheAt(cache, page.dims, token, unit, i) = DenseBf16(page.payloads[0], page.dims, token, unit.in_page[i], true);
    }
  }
}

// Values as an encoder sees them. False: one is not finite or too large.
LYNX_KERNEL bool LoadUnit(const PagedCache& cache, const PageDims& dims, int token, const ChannelUnit& unit,
                          float* values) {
  bool within = true;
  for (int i = 0; i < unit.count; ++i) {
    values[i] = Bf16ToFloat(*CacheAt(cache, dims, token, unit, i));
    within = within && values[i] >= -kMaxMagnitude && values[i] <= kMaxMagnitude;
  }
  return within;
}

}  // namespace lynx
