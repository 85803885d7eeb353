// `int8` and `int4`: whole-cache baselines, symmetric, one step per token over all channels of the page, or over
// groups of them.
#pragma once

#include "codec/kernels.h"
#include "codec/page_codec.h"

namespace lynx {

class IntegerCodec : public PageCodec {
 public:
  // bits: 8 or 4. group: channels that share a step; 0: all of the page.
  IntegerCodec(const CacheShape& shape, const CodecKernels& kernels, int bits, int group, const std::string& spec);

 protected:
  std::size_t PayloadBytes(const PageDims& dims, int stream) const override;
  bool TakesBf16(const PageAddress&) const override { return group_ == 0; }
  std::size_t WorkBytes(const PageDims& dims) const override;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const override;
  bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                  std::span<std::size_t> payload_bytes, Scratch scratch) const override;
  void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const override;

 private:
  std::size_t GroupsOf(const PageDims& dims) const;
  void PutSteps(float* magnitudes, std::size_t count, std::byte* to) const;
  void EncodeGroups(const float* values, const PageDims& dims, std::byte* payload, Scratch scratch) const;

  const CodecKernels& kernels_;
  const int bits_;
  const int group_;
};

}  // namespace lynx
