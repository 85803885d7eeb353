// `nested`: per channel and chunk a uniform grid of 256 cells, the anchor its high and the residual its low nibble.
#pragma once

#include <string>

#include "codec/kernels.h"
#include "codec/page_codec.h"

namespace lynx {

class NestedCodec : public PageCodec {
 public:
  NestedCodec(const CacheShape& shape, const CodecKernels& kernels, const std::string& spec);

 protected:
  std::size_t PayloadBytes(const PageDims& dims, int stream) const override;
  std::size_t WorkBytes(const PageDims& dims) const override;
  bool EncodeValues(const float* values, const PageDims& dims, std::span<std::byte* const> payloads,
                    std::span<std::size_t> payload_bytes, Scratch scratch) const override;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const override;
  void DecodeChunk(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const override;

 private:
  const CodecKernels& kernels_;
};

}  // namespace lynx
