#include "baselines/fp8_codec.h"

#include <bit>
#include <cmath>

#include "baselines/numbers.h"

namespace lynx {
namespace {

constexpr float kGreatest = 448.0f;
constexpr float kLeastNormal = 0x1p-6f;
constexpr float kLeastStep = 0x1p-9f;

bool IsNan(std::uint8_t code) { return (code & 0x7f) == 0x7f; }

}  // namespace

std::uint8_t FloatToE4m3(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude >= kGreatest) return sign | 0x7e;
  // Below the least normal number codes count steps; the code after the last one is the least normal number.
  if (magnitude < kLeastNormal) return sign | std::uint8_t(NearestInteger(magnitude / kLeastStep));
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t rounded = bits + 0x7ffffu + ((bits >> 20) & 1u);
  return sign | std::uint8_t((rounded >> 20) - (120u << 3));
}

float E4m3ToFloat(std::uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const float magnitude = exponent == 0 ? float(mantissa) * kLeastStep
                                        : std::bit_cast<float>((std::uint32_t(code & 0x7f) + (120u << 3)) << 20);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

Fp8Codec::Fp8Codec(const std::string& spec, const CacheShape& shape, Scale scale)
    : BaselineCodec(spec, CodecId::kFp8, shape), scale_(scale) {}

// Head by head: tokens that share a scale, the scale (FP16) and their codes.
void Fp8Codec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch) const {
  const int head_dim = dims.head_dim();
  const int tokens = scale_ == Scale::kHeadToken ? 1 : dims.tokens;
  for (int first_channel = 0; first_channel < dims.channels; first_channel += head_dim) {
    for (int first = 0; first < dims.tokens; first += tokens) {
      const float* corner = values + std::size_t(first) * dims.channels + first_channel;
      float greatest = 0.0f;
      for (int token = 0; token < tokens; ++token) {
        const float* head = corner + std::size_t(token) * dims.channels;
        for (int c = 0; c < head_dim; ++c) greatest = std::max(greatest, std::fabs(head[c]));
      }
      float scale = 1.0f;
      if (scale_ != Scale::kNone) scale = PutF16(F16Up(greatest / kGreatest), &streams[0]);
      for (int token = 0; token < tokens; ++token) {
        const float* head = corner + std::size_t(token) * dims.channels;
        for (int c = 0; c < head_dim; ++c) {
          streams[0].Put(FloatToE4m3(scale > 0.0f ? head[c] / scale : 0.0f), 8);
        }
      }
    }
  }
}

bool Fp8Codec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch) const {
  const int head_dim = dims.head_dim();
  const int tokens = scale_ == Scale::kHeadToken ? 1 : dims.tokens;
  bool possible = true;
  for (int first_channel = 0; first_channel < dims.channels; first_channel += head_dim) {
    for (int first = 0; first < dims.tokens; first += tokens) {
      const float scale = scale_ != Scale::kNone ? GetF16(&streams[0]) : 1.0f;
      for (int token = first; token < first + tokens; ++token) {
        float* head = values + std::size_t(token) * dims.channels + first_channel;
        for (int c = 0; c < head_dim; ++c) {
          const auto code = std::uint8_t(streams[0].Get(8));
          possible = possible && !IsNan(code);
          head[c] = IsNan(code) ? 0.0f : E4m3ToFloat(code) * scale;
        }
      }
    }
  }
  return possible;
}

}  // namespace lynx
