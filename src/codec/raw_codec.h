// `raw`: BF16 elements, one stream.
#pragma once

#include "codec/page_codec.h"

namespace lynx {

class RawCodec : public PageCodec {
 public:
  explicit RawCodec(const CacheShape& shape);

 protected:
  bool AlwaysExact(ElementType type) const override { return type == ElementType::kBf16; }
  std::size_t PayloadBytes(const PageDims& dims, int stream) const override;
  std::size_t WorkBytes(const PageDims& dims) const override;
  bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                  std::span<std::size_t> payload_bytes, Scratch scratch) const override;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const override;
  void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const override;
};

}  // namespace lynx
