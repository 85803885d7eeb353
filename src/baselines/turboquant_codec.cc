#include "baselines/turboquant_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/random.h"
#include "baselines/max_quantizer.h"
#include "baselines/numbers.h"

namespace lynx {
namespace {

constexpr std::uint64_t kSeed = 1;  // any; both ends must use the same

}  // namespace

RandomRotation::RandomRotation(int length) : length_(length), part_(int(std::bit_floor(unsigned(length)))) {
  Random random(kSeed);
  const float scale = 1.0f / std::sqrt(float(part_));
  for (int i = 0; i < kRounds * part_; ++i) signs_.push_back((random.Next() & 1u) != 0 ? scale : -scale);
}

// Butterflies; without the scale.
void RandomRotation::Transform(float* part) const {
  for (int width = 1; width < part_; width *= 2) {
    for (int block = 0; block < part_; block += 2 * width) {
      for (int i = block; i < block + width; ++i) {
        const float a = part[i], b = part[i + width];
        part[i] = a + b;
        part[i + width] = a - b;
      }
    }
  }
}

void RandomRotation::Apply(float* vector) const {
  for (int round = 0; round < kRounds; ++round) {
    float* part = PartOf(vector, round);
    for (int i = 0; i < part_; ++i) part[i] *= signs_[std::size_t(round * part_ + i)];
    Transform(part);
  }
}

void RandomRotation::Undo(float* vector) const {
  for (int round = kRounds - 1; round >= 0; --round) {
    float* part = PartOf(vector, round);
    Transform(part);
    for (int i = 0; i < part_; ++i) part[i] *= signs_[std::size_t(round * part_ + i)];
  }
}

TurboQuantCodec::TurboQuantCodec(const std::string& spec, const CacheShape& shape, int bits)
    : BaselineCodec(spec, CodecId::kTurboQuant, shape), bits_(bits) {
  for (const LayerShape& layer : shape.layers) {
    for (int head_dim : {layer.key_dim, layer.value_dim}) {
      const bool known = std::any_of(rotations_.begin(), rotations_.end(),
                                     [head_dim](const auto& each) { return each.first == head_dim; });
      if (head_dim > 0 && !known) rotations_.emplace_back(head_dim, RandomRotation(head_dim));
    }
  }
}

const RandomRotation& TurboQuantCodec::RotationOf(int head_dim) const {
  return std::find_if(rotations_.begin(), rotations_.end(),
                      [head_dim](const auto& each) { return each.first == head_dim; })
      ->second;
}

std::size_t TurboQuantCodec::PageWorkBytes(const PageDims& dims) const {
  return Scratch::BytesFor<float>(std::size_t(dims.channels));
}

// Per token and head: the root mean square (FP16; the vector's norm up to a constant), then the codes of the rotated
// components at mean square 1; a vector of zeros stays.
void TurboQuantCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams,
                            Scratch scratch) const {
  const int head_dim = dims.head_dim();
  const RandomRotation& rotation = RotationOf(head_dim);
  float* vector = scratch.Take<float>(std::size_t(head_dim));
  for (std::size_t first = 0; first < dims.elements(); first += std::size_t(head_dim)) {
    std::copy_n(values + first, head_dim, vector);
    double squares = 0;
    for (int c = 0; c < head_dim; ++c) squares += double(vector[c]) * double(vector[c]);
    const float rms = PutF16(FloatToF16(float(std::sqrt(squares / head_dim))), &streams[0]);
    rotation.Apply(vector);
    for (int c = 0; c < head_dim; ++c) {
      streams[0].Put(std::uint32_t(MaxLevelOf(vector[c] * InverseOf(rms), bits_)), bits_);
    }
  }
}

bool TurboQuantCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch) const {
  const int head_dim = dims.head_dim();
  const RandomRotation& rotation = RotationOf(head_dim);
  for (std::size_t first = 0; first < dims.elements(); first += std::size_t(head_dim)) {
    const float rms = GetF16(&streams[0]);
    for (int c = 0; c < head_dim; ++c) values[first + c] = rms * MaxValueOf(int(streams[0].Get(bits_)), bits_);
    rotation.Undo(values + first);
  }
  return true;
}

}  // namespace lynx
