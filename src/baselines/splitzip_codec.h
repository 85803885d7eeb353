// `splitzip`: BF16 without loss; exponents are coded, signs and mantissas are not.
#pragma once

#include "baselines/baseline_codec.h"

namespace lynx {

// Pages of other element types travel exactly.
class SplitZipCodec : public BaselineCodec {
 public:
  // entropy: exponents by an arithmetic coder with the page's frequencies; else 4-bit codes of the 16 commonest, and
  // a list of the others.
  SplitZipCodec(const std::string& spec, const CacheShape& shape, bool entropy);

 protected:
  bool AlwaysExact(ElementType type) const override { return type != ElementType::kBf16; }
  std::size_t PageWorkBytes(const PageDims& dims) const override;
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  const bool entropy_;
};

}  // namespace lynx
