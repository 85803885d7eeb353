// `cachegen`: differences between tokens, coarser in later layers, arithmetic-coded.
#pragma once

#include "baselines/baseline_codec.h"
#include "baselines/range_coder.h"

namespace lynx {

struct CacheGenParameters {
  bool delta = true;  // tokens as differences from the anchor token of their ten; false: as themselves
  bool cdf = false;   // tables of symbol frequencies in the stream; false: an adaptive model, which costs nothing
};

class CacheGenCodec : public BaselineCodec {
 public:
  CacheGenCodec(const std::string& spec, const CacheShape& shape, const CacheGenParameters& parameters);

 protected:
  std::size_t PageWorkBytes(const PageDims& dims) const override;
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  bool IsAnchor(int token) const;
  // Symbols are 0…2 * GreatestLevel of the token.
  int GreatestLevel(const PageDims& dims, int token) const;

  const CacheGenParameters parameters_;
  const int layers_;
};

}  // namespace lynx
