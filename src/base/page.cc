#include "lynx/page.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/status_macros.h"

namespace lynx {

std::int64_t CacheShape::ElementsPerToken() const {
  std::int64_t elements = 0;
  for (const LayerShape& layer : layers) elements += std::int64_t{layer.kv_heads} * (layer.key_dim + layer.value_dim);
  return elements;
}

CacheBlock::CacheBlock(const CacheShape& shape, int first_token, int token_count)
    : shape_(shape), first_token_(first_token), token_count_(token_count) {
  LYNX_CHECK(first_token >= 0 && token_count >= 0);
  offsets_.reserve(2 * shape.layers.size() + 1);
  std::size_t offset = 0;
  for (const LayerShape& layer : shape.layers) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      offsets_.push_back(offset);
      offset += std::size_t(token_count) * layer.kv_heads * layer.HeadDim(kind) * ElementBytes(shape.element_type);
    }
  }
  offsets_.push_back(offset);
  lines_.resize((offset + sizeof(Line) - 1) / sizeof(Line));
}

std::span<std::byte> CacheBlock::Rows(int layer, KvKind kind) {
  const std::size_t slot = 2 * std::size_t(layer) + std::size_t(kind);
  return {reinterpret_cast<std::byte*>(lines_.data()) + offsets_[slot], offsets_[slot + 1] - offsets_[slot]};
}

std::span<const std::byte> CacheBlock::Rows(int layer, KvKind kind) const {
  return const_cast<CacheBlock*>(this)->Rows(layer, kind);
}

Result<PageSpan> CacheBlock::Page(const PageAddress& address) {
  LYNX_RETURN_IF_ERROR(CheckAddress(shape_, address));
  if (address.first_token < first_token_ || address.token_count > token_count_ ||
      address.first_token - first_token_ > token_count_ - address.token_count) {
    return Invalid("page tokens lie outside the block");
  }
  const LayerShape& layer = shape_.layers[address.layer];
  PageSpan page;
  page.address = address;
  page.element_type = shape_.element_type;
  page.head_dim = layer.HeadDim(address.kind);
  page.channel_stride = ElementBytes(shape_.element_type);
  page.head_stride = page.channel_stride * page.head_dim;
  page.token_stride = page.head_stride * layer.kv_heads;
  page.data = Rows(address.layer, address.kind).data() + (address.first_token - first_token_) * page.token_stride +
              address.first_head * page.head_stride;
  return page;
}

Result<PageView> CacheBlock::Page(const PageAddress& address) const {
  LYNX_ASSIGN_OR_RETURN(const PageSpan page, const_cast<CacheBlock*>(this)->Page(address));
  return PageView(page);
}

std::vector<PageAddress> PagesOf(const CacheShape& shape, int first_token, int token_count, int page_tokens,
                                 int heads_per_page) {
  LYNX_CHECK(page_tokens > 0 && heads_per_page >= 0);
  std::vector<PageAddress> pages;
  const int end = first_token + token_count;
  for (int token = first_token; token < end;) {
    const int page_end = std::min(end, (token / page_tokens + 1) * page_tokens);
    for (int layer = 0; layer < int(shape.layers.size()); ++layer) {
      const LayerShape& dims = shape.layers[layer];
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        if (dims.HeadDim(kind) == 0) continue;
        const int group = heads_per_page == 0 ? dims.kv_heads : heads_per_page;
        for (int head = 0; head < dims.kv_heads; head += group) {
          pages.push_back({layer, kind, head, std::min(group, dims.kv_heads - head), token, page_end - token});
        }
      }
    }
    token = page_end;
  }
  return pages;
}

Status CheckAddress(const CacheShape& shape, const PageAddress& address) {
  const auto bad = [](const char* what, std::int64_t value) {
    return Invalid(std::string("page address: ") + what + " " + std::to_string(value) + " does not fit the cache");
  };
  if (address.layer < 0 || address.layer >= int(shape.layers.size())) return bad("layer", address.layer);
  const LayerShape& layer = shape.layers[address.layer];
  if (address.kind != KvKind::kKey && address.kind != KvKind::kValue) return bad("kind", int(address.kind));
  if (layer.HeadDim(address.kind) <= 0) return bad("kind", int(address.kind));
  if (address.first_head < 0 || address.first_head >= layer.kv_heads) return bad("first head", address.first_head);
  if (address.head_count <= 0 || address.head_count > layer.kv_heads - address.first_head)
    return bad("head count", address.head_count);
  if (address.first_token < 0) return bad("first token", address.first_token);
  if (address.token_count <= 0) return bad("token count", address.token_count);
  return Ok();
}

}  // namespace lynx
