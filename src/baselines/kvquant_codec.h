// `kvquant`: non-uniform levels for normalised values, 1 % of the values exact, K as it was before RoPE.
#pragma once

#include "baselines/baseline_codec.h"
#include "codec/rope_table.h"

namespace lynx {

class KvQuantCodec : public BaselineCodec {
 public:
  // outliers: share of the values of a vector (K: a channel of the page, V: a token) that are kept in BF16.
  KvQuantCodec(const std::string& spec, const CacheShape& shape, int bits, double outliers);

 protected:
  std::size_t PageWorkBytes(const PageDims& dims) const override;
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  // How many values are exact at either end of a vector.
  int OutliersPerSide(int count) const;

  const int bits_;
  const double outliers_;
  const RopeTables ropes_;
};

}  // namespace lynx
