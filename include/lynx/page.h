// Pages: strided views over a KV cache that somebody else owns, addressed by layer, kind, heads and token range
// (never by a page index, so that peers with other page sizes can talk).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "lynx/result.h"

namespace lynx {

enum class ElementType : std::uint8_t { kBf16 = 0, kF16 = 1, kF32 = 2 };
constexpr int ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

enum class KvKind : std::uint8_t { kKey = 0, kValue = 1 };

// How the K of a layer was rotated: pairs (2i, 2i+1) for kNorm, (i, i + dims/2) for kNeox, counted from `offset`
// inside the head. Channels outside [offset, offset + dims) are not rotated.
enum class RopePairing : std::uint8_t { kNone = 0, kNorm = 1, kNeox = 2 };
struct RopeShape {
  RopePairing pairing = RopePairing::kNone;
  int offset = 0;
  int dims = 0;                          // even; dims / 2 pairs
  std::vector<float> radians_per_token;  // one per pair
  bool operator==(const RopeShape&) const = default;
};

struct LayerShape {
  int kv_heads = 0;
  int key_dim = 0;    // channels of one K head
  int value_dim = 0;  // channels of one V head; 0: the layer has K only (MLA)
  RopeShape rope;
  int HeadDim(KvKind kind) const { return kind == KvKind::kKey ? key_dim : value_dim; }
  bool operator==(const LayerShape&) const = default;
};

// The cache of one sequence: what an engine stores per token, layer by layer.
struct CacheShape {
  ElementType element_type = ElementType::kBf16;
  std::vector<LayerShape> layers;
  std::int64_t ElementsPerToken() const;
  std::int64_t BytesPerToken() const { return ElementsPerToken() * ElementBytes(element_type); }
  bool operator==(const CacheShape&) const = default;
};

// Which part of a cache a page is. Positions count from the start of the sequence.
struct PageAddress {
  int layer = 0;
  KvKind kind = KvKind::kKey;
  int first_head = 0;
  int head_count = 0;
  int first_token = 0;
  int token_count = 0;
  auto operator<=>(const PageAddress&) const = default;
};

// A view of one page: element (token, head, channel) lies at data + token * token_stride + head * head_stride +
// channel * channel_stride, strides in bytes, indices relative to the page. Only `address.token_count` tokens are
// valid; whatever lies behind them is never read or written.
template <typename Byte>
struct BasicPage {
  PageAddress address;
  ElementType element_type = ElementType::kBf16;
  int head_dim = 0;
  Byte* data = nullptr;
  std::ptrdiff_t token_stride = 0;
  std::ptrdiff_t head_stride = 0;
  std::ptrdiff_t channel_stride = 0;
  int tokens_after = -1;  // tokens of the prompt behind this page (0: it is the last one); -1: not known

  int channels() const { return address.head_count * head_dim; }
  std::int64_t elements() const { return std::int64_t{channels()} * address.token_count; }
  Byte* At(int token, int head, int channel) const {
    return data + token * token_stride + head * head_stride + channel * channel_stride;
  }
  operator BasicPage<const std::byte>() const  // NOLINT: a span is a view
      requires(!std::is_const_v<Byte>) {
    return {address, element_type, head_dim, data, token_stride, head_stride, channel_stride, tokens_after};
  }
};
using PageView = BasicPage<const std::byte>;
using PageSpan = BasicPage<std::byte>;

// Host memory for all layers of a token range: per layer and kind, rows of [token][head][channel], densely packed from a
// cache line's begin on.
// Engines read and write caches as blocks; pages are views into them.
class CacheBlock {
 public:
  // Zero-filled. Requires first_token >= 0 and token_count >= 0.
  CacheBlock(const CacheShape& shape, int first_token, int token_count);

  int first_token() const { return first_token_; }
  int token_count() const { return token_count_; }
  const CacheShape& shape() const { return shape_; }
  std::size_t bytes() const { return offsets_.back(); }

  // token_count * kv_heads * HeadDim(kind) * ElementBytes bytes; empty for a kind that the layer lacks.
  std::span<std::byte> Rows(int layer, KvKind kind);
  std::span<const std::byte> Rows(int layer, KvKind kind) const;

  // kInvalid unless the address lies inside this block and names whole heads of its layer.
  Result<PageView> Page(const PageAddress& address) const;
  Result<PageSpan> Page(const PageAddress& address);

 private:
  CacheShape shape_;
  int first_token_;
  int token_count_;
  std::vector<std::size_t> offsets_;  // 2 * layer + kind -> byte offset; one more at the end
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

// The pages that cover tokens [first_token, first_token + token_count) of every layer, in sending order: token range
// outermost (cut at multiples of page_tokens from position 0), then layer, K before V, then head groups of
// heads_per_page (0: all heads of the layer).
std::vector<PageAddress> PagesOf(const CacheShape& shape, int first_token, int token_count, int page_tokens,
                                 int heads_per_page);

// The name of the first value in an address that does not fit the shape, as a kInvalid Status.
Status CheckAddress(const CacheShape& shape, const PageAddress& address);

}  // namespace lynx
