// `turboquant`: a random rotation makes every head vector look Gaussian; then a fixed scalar quantizer.
#pragma once

#include <vector>

#include "baselines/baseline_codec.h"

namespace lynx {

// An orthogonal map of vectors of one length: random signs and a Walsh-Hadamard transform of the first 2^k coordinates
// (the greatest power that fits), then likewise of the last 2^k, twice over. Nothing has to be padded.
class RandomRotation {
 public:
  explicit RandomRotation(int length);
  void Apply(float* vector) const;
  void Undo(float* vector) const;

 private:
  static constexpr int kRounds = 4;  // ends take turns
  void Transform(float* part) const;
  float* PartOf(float* vector, int round) const { return vector + (round % 2 == 0 ? 0 : length_ - part_); }

  int length_;
  int part_;                  // 2^k
  std::vector<float> signs_;  // [round][2^k], with the transform's scale in them
};

class TurboQuantCodec : public BaselineCodec {
 public:
  TurboQuantCodec(const std::string& spec, const CacheShape& shape, int bits);

 protected:
  std::size_t PageWorkBytes(const PageDims& dims) const override;
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  const RandomRotation& RotationOf(int head_dim) const;

  const int bits_;
  std::vector<std::pair<int, RandomRotation>> rotations_;  // by head_dim
};

}  // namespace lynx
