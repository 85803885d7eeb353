// `nested`: per channel and chunk a uniform grid of 256 cells, the anchor the high and the residual the low bits of the
// cell's number. The codec of a fixed rate, for links faster than an entropy coder.
#pragma once

#include <optional>
#include <string>

#include "codec/kernels.h"
#include "codec/page_codec.h"
#include "codec/rope_table.h"

namespace lynx {

struct NestedParameters {
  int anchor_bits = 4;  // 3 to 6 of 8
  int recent = 64;
  bool unrope = false;
};

class NestedCodec : public PageCodec {
 public:
  NestedCodec(const CacheShape& shape, const CodecKernels& kernels, const NestedParameters& parameters,
              const std::string& spec);
  const NestedParameters& parameters() const { return parameters_; }
  const RopeTable* RopeOf(const PageAddress& address) const;  // null: not turned

 protected:
  bool PayloadsVary() const override { return true; }
  std::size_t PayloadBytes(const PageDims& dims, int stream) const override;
  std::size_t ExpectedPayloadBytes(const PageDims& dims, int stream) const override;
  bool TakesBf16(const PageAddress& address) const override { return RopeOf(address) == nullptr; }
  std::size_t WorkBytes(const PageDims& dims) const override;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const override;
  bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                  std::span<std::size_t> payload_bytes, Scratch scratch) const override;
  void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const override;

 private:
  const CodecKernels& kernels_;
  const NestedParameters parameters_;
  std::optional<RopeTables> ropes_;
};

}  // namespace lynx
