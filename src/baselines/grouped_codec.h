// `kivi` and `quantspec`: asymmetric integers, K in groups of tokens of a channel, V in groups of channels of a token.
#pragma once

#include "baselines/baseline_codec.h"

namespace lynx {

// kivi: K tokens that don't fill a group of `window`, and the last `window` tokens of V, stay BF16.
class KiviCodec : public BaselineCodec {
 public:
  KiviCodec(const std::string& spec, const CacheShape& shape, int bits, int group, int window);

 protected:
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  const int bits_, group_, window_;
};

// quantspec: 16 levels in stream 0, 16 sixteenths of a step around each in stream 1. The last `group` tokens and those
// that don't fill a group stay BF16, in stream 0, if `buffer`.
class QuantSpecCodec : public BaselineCodec {
 public:
  QuantSpecCodec(const std::string& spec, const CacheShape& shape, int group, bool buffer);

 protected:
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  const int group_;
  const bool buffer_;
};

}  // namespace lynx
