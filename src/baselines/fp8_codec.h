// `fp8`: E4M3 as GPUs have it, the cache format of vLLM, TensorRT-LLM and others.
#pragma once

#include "baselines/baseline_codec.h"

namespace lynx {

// OCP E4M3 (no infinities, 448 is the greatest): rounded to nearest even, saturated. value is finite.
std::uint8_t FloatToE4m3(float value);
// Any code but the two NaNs (0x7f, 0xff).
float E4m3ToFloat(std::uint8_t code);

class Fp8Codec : public BaselineCodec {
 public:
  // What shares a scale that brings the greatest magnitude to 448.
  enum class Scale { kNone, kHeadPage, kHeadToken };
  Fp8Codec(const std::string& spec, const CacheShape& shape, Scale scale);

 protected:
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  const Scale scale_;
};

}  // namespace lynx
