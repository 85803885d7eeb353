// A cache in blocks for the tests of GPU kernels: blocks in no order, gaps between tokens and heads, 0xff everywhere
// else.
#pragma once

#include <cstring>
#include <vector>

#include "codec/lynx_profile.h"
#include "codec/page_memory_test.h"
#include "codec/paged_cache.h"

namespace lynx::testing {

class PagedMemory {
 public:
  PagedMemory(int tokens, int heads, int head_dim, int block_tokens) {
    cache_.block_tokens = block_tokens;
    cache_.head_stride = 2 * head_dim + 2;
    cache_.token_stride = heads * cache_.head_stride + 6;
    cache_.block_stride = block_tokens * cache_.token_stride + 10;
    const int blocks = (tokens + block_tokens - 1) / block_tokens;
    for (int i = 0; i < blocks; ++i) table_.push_back((i * 7 + 3) % blocks);  // an order of its own unless 7 divides it
    if (blocks % 7 == 0) {
      for (int i = 0; i < blocks; ++i) table_[std::size_t(i)] = blocks - 1 - i;
    }
    bytes_.assign(std::size_t(blocks) * std::size_t(cache_.block_stride), std::byte{0xff});
  }

  // Pointers into this object's memory.
  PagedCache cache() {
    PagedCache cache = cache_;
    cache.base = bytes_.data();
    cache.block_table = table_.data();
    return cache;
  }
  const PagedCache& strides() const { return cache_; }
  const std::vector<std::int32_t>& table() const { return table_; }
  std::vector<std::byte>& bytes() { return bytes_; }

  // Dense BF16 elements [token][head][channel] of a page.
  void Fill(const PageAddress& page, int head_dim, const std::vector<std::byte>& bits) {
    ForEach(page, head_dim, [&](std::uint16_t* element, std::size_t at) { std::memcpy(element, &bits[at], 2); });
  }
  std::vector<std::byte> Bits(const PageAddress& page, int head_dim) {
    std::vector<std::byte> bits(std::size_t(page.token_count) * std::size_t(page.head_count) * std::size_t(head_dim) *
                                2);
    ForEach(page, head_dim, [&](const std::uint16_t* element, std::size_t at) { std::memcpy(&bits[at], element, 2); });
    return bits;
  }

 private:
  template <typename Visit>
  void ForEach(const PageAddress& page, int head_dim, Visit visit) {
    std::size_t at = 0;
    for (int token = 0; token < page.token_count; ++token) {
      for (int head = 0; head < page.head_count; ++head) {
        for (int c = 0; c < head_dim; ++c, at += 2) {
          visit(cache().At(page.first_token + token, page.first_head + head, c), at);
        }
      }
    }
  }
  PagedCache cache_;
  std::vector<std::int32_t> table_;
  std::vector<std::byte> bytes_;
};

// Three layers: K turned in neighbouring pairs, all of a head; in halves, a part of it; not at all.
inline CacheShape RopeShapeFor(int heads, int head_dim, ElementType type = ElementType::kBf16) {
  CacheShape shape = ShapeFor(heads, head_dim, type);
  const auto turn = [&](RopePairing pairing, int offset, int dims) {
    RopeShape rope{pairing, offset, dims, {}};
    for (int pair = 0; pair < dims / 2; ++pair) rope.radians_per_token.push_back(1.0f / float(1 + 3 * pair));
    return rope;
  };
  if (head_dim >= 2) shape.layers[0].rope = turn(RopePairing::kNorm, 0, head_dim / 2 * 2);
  if (head_dim >= 8) shape.layers[1].rope = turn(RopePairing::kNeox, 2, head_dim / 4 * 2);
  return shape;
}

// Steps of `lynx` per channel, some far from what the values need: from levels of one symbol to those with low bits.
inline Profile ProfileFor(const CacheShape& shape) {
  LynxProfile rows;
  Random random(31);
  for (const LayerShape& layer : shape.layers) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      auto& row = rows.emplace_back(std::size_t(layer.kv_heads * layer.HeadDim(kind)));
      for (LynxChannelProfile& channel : row) {
        channel = {std::int16_t(random.Below(300)), std::int16_t(int(random.Below(600)) - 300)};
      }
    }
  }
  return WriteLynxProfile(rows, shape);
}

struct PagedCase {
  int heads, head_dim, first_token, tokens, tokens_after, layer;
  Input input;
  PageAddress address(int cache_heads) const {
    return {layer, KvKind::kKey, cache_heads - heads, heads, first_token, tokens};
  }
};
inline constexpr PagedCase kPagedCases[] = {
    {1, 1, 0, 5, -1, 2, Input::kNormal},       {1, 7, 2, 33, 0, 0, Input::kLoudToken},
    {2, 16, 0, 256, 0, 1, Input::kNormal},     {1, 64, 0, 256, 40, 0, Input::kNormal},
    {1, 64, 256, 250, -1, 1, Input::kNormal},  {3, 33, 512, 31, 3, 0, Input::kOffset},
    {1, 128, 256, 256, 10, 1, Input::kNormal}, {1, 80, 768, 100, 0, 2, Input::kLoudToken},
    {2, 24, 3, 64, 0, 0, Input::kConstant},    {1, 32, 0, 65, 20, 1, Input::kZeros},
    {2, 8, 0, 4, 0, 0, Input::kNormal},        {1, 16, 256, 1, 0, 0, Input::kNormal},
    {1, 40, 256, 129, 0, 2, Input::kTiny},     {1, 12, 0, 200, 0, 1, Input::kLargest},
};

}  // namespace lynx::testing
