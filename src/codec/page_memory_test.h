// Pages with every memory layout, and inputs with every shape of values, for the tests of this folder.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/float16.h"
#include "base/random.h"
#include "codec/catalog.h"
#include "codec/page_stream.h"
#include "lynx/codec.h"

namespace lynx::testing {

enum class Layout { kDense, kPackedKv, kHeadsOutside, kTokensLast, kReversedTokens, kChannelsOutside };
inline constexpr Layout kLayouts[] = {Layout::kDense,      Layout::kPackedKv,       Layout::kHeadsOutside,
                                      Layout::kTokensLast, Layout::kReversedTokens, Layout::kChannelsOutside};

// Memory of one page; everything that is not a valid element holds 0xff bytes (NaN).
class PageMemory {
 public:
  PageMemory(const PageAddress& address, int head_dim, ElementType type, Layout layout = Layout::kDense) {
    const std::ptrdiff_t bytes = ElementBytes(type);
    const std::ptrdiff_t heads = address.head_count, tokens = address.token_count + 3, dim = head_dim;
    span_.address = address;
    span_.element_type = type;
    span_.head_dim = head_dim;
    bytes_.assign(std::size_t(2 * heads * tokens * dim * bytes + 64), std::byte{0xff});
    std::byte* begin = bytes_.data() + bytes;  // off any alignment but the element's
    const auto set = [&](std::ptrdiff_t token, std::ptrdiff_t head, std::ptrdiff_t channel) {
      span_.token_stride = token * bytes;
      span_.head_stride = head * bytes;
      span_.channel_stride = channel * bytes;
      span_.data = begin;
    };
    switch (layout) {
      case Layout::kDense:
        set(heads * dim, dim, 1);
        break;
      case Layout::kPackedKv:
        set(2 * heads * dim, 2 * dim, 1);
        break;  // [token][head][K | V]
      case Layout::kHeadsOutside:
        set(dim, tokens * dim, 1);
        break;
      case Layout::kTokensLast:
        set(1, tokens * dim, tokens);
        break;
      case Layout::kChannelsOutside:
        set(heads, 1, tokens * heads);
        break;
      case Layout::kReversedTokens:
        set(-heads * dim, dim, 1);
        span_.data = begin + (tokens - 1) * heads * dim * bytes;
        break;
    }
  }

  const PageSpan& span() const { return span_; }
  PageView view() const { return span_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // values: [token][head][channel].
  void Fill(const std::vector<float>& values) {
    LYNX_CHECK(std::int64_t(values.size()) == span_.elements());
    std::size_t i = 0;
    ForEach([&](std::byte* at) { StoreElement(values[i++], span_.element_type, at); });
  }
  std::vector<float> Values() const {
    std::vector<float> values;
    ForEach([&](std::byte* at) { values.push_back(LoadElement(at, span_.element_type)); });
    return values;
  }
  std::vector<std::byte> Bits() const {
    std::vector<std::byte> bits;
    ForEach([&](std::byte* at) { bits.insert(bits.end(), at, at + ElementBytes(span_.element_type)); });
    return bits;
  }

 private:
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (int token = 0; token < span_.address.token_count; ++token) {
      for (int head = 0; head < span_.address.head_count; ++head) {
        for (int channel = 0; channel < span_.head_dim; ++channel) visit(span_.At(token, head, channel));
      }
    }
  }
  std::vector<std::byte> bytes_;
  PageSpan span_;
};

// A cache of three layers; `heads` heads of `head_dim` channels, the last layer K only.
inline CacheShape ShapeFor(int heads, int head_dim, ElementType type = ElementType::kBf16) {
  CacheShape shape;
  shape.element_type = type;
  shape.layers.assign(2, LayerShape{heads, head_dim, head_dim, {}});
  shape.layers.push_back(LayerShape{heads, head_dim, 0, {}});
  return shape;
}

inline std::unique_ptr<Codec> MustMake(std::string_view spec, const CacheShape& shape,
                                       const CodecKernels& kernels = SimdKernels()) {
  auto codec = MakeCodecWith(kernels, spec, shape);
  LYNX_CHECK(codec.ok());
  return std::move(codec).value();
}

using Streams = std::vector<std::vector<std::byte>>;

inline std::vector<std::byte> ScratchFor(const Codec& codec, const PageAddress& address, int head_dim) {
  return std::vector<std::byte>(codec.ScratchBytes({address.kind, address.head_count, head_dim, address.token_count}));
}

inline Result<Streams> EncodePage(const Codec& codec, const PageView& page) {
  const PageShape shape{page.address.kind, page.address.head_count, page.head_dim, page.address.token_count};
  Streams streams;
  std::vector<std::span<std::byte>> buffers;
  for (int k = 0; k < codec.info().stream_count; ++k) streams.emplace_back(codec.MaxBytes(shape, k), std::byte{0xaa});
  for (auto& stream : streams) buffers.emplace_back(stream);
  std::vector<std::size_t> sizes(streams.size());
  auto scratch = ScratchFor(codec, page.address, page.head_dim);
  const Status status = codec.Encode(page, buffers, sizes, scratch);
  if (!status.ok()) return status;
  for (std::size_t k = 0; k < streams.size(); ++k) streams[k].resize(sizes[k]);
  return streams;
}

// Decodes from the first `count` streams.
inline Status DecodePage(const Codec& codec, const Streams& streams, std::size_t count, const PageSpan& page) {
  const std::vector<std::span<const std::byte>> prefix(streams.begin(), streams.begin() + std::ptrdiff_t(count));
  auto scratch = ScratchFor(codec, page.address, page.head_dim);
  return codec.Decode(prefix, page, scratch);
}

inline bool IsExact(const Streams& streams) { return OpenPageStream(streams[0])->header.exact; }

// Makes the checksum right.
inline void PutChecksum(std::vector<std::byte>* stream) {
  const std::span<const std::byte> bytes(*stream);
  StoreLittle(Crc32c(bytes.subspan(kPageStreamHeaderBytes), Crc32c(bytes.first(32))), stream->data() + 32);
}
// Of all that have a header: lengths, checksums and, with `link`, what ties later streams to this stream 0.
inline void Reseal(Streams* streams, bool link = true) {
  for (std::vector<std::byte>& stream : *streams) {
    if (stream.size() < kPageStreamHeaderBytes) continue;
    StoreLittle(std::uint32_t(stream.size() - kPageStreamHeaderBytes), stream.data() + 24);
    const std::vector<std::byte>& anchor = streams->front();
    if (&stream != &anchor && link && anchor.size() >= kPageStreamHeaderBytes) {
      StoreLittle(LoadLittle<std::uint32_t>(anchor.data() + 32), stream.data() + 28);
    }
    PutChecksum(&stream);
  }
}

// As most models have it.
inline RopeShape RopeOf(RopePairing pairing, int offset, int dims) {
  RopeShape rope{pairing, offset, dims, {}};
  for (int pair = 0; pair < dims / 2; ++pair) {
    rope.radians_per_token.push_back(float(std::pow(10000.0, -2.0 * pair / dims)));
  }
  return rope;
}

// Squared error over squared values.
inline double Nmse(std::span<const float> values, std::span<const float> decoded) {
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(double(decoded[i]) - values[i], 2);
    energy += std::pow(double(values[i]), 2);
  }
  return error / energy;
}

inline float Normal(Random& random) {
  const double angle = 6.283185307179586 * random.Unit();
  return float(std::sqrt(-2.0 * std::log(random.Unit())) * std::cos(angle));
}

enum class Input {
  kNormal,     // channels of different scales, some 100 times the others
  kConstant,   // each channel constant
  kOffset,     // a channel's offset is 1000 times its range
  kLoudToken,  // one token 100 times the others
  kZeros,      // +0 and -0
  kDenormals,  // magnitudes around the least normal float
  kTiny,       // below the least half
  kLargest,    // up to kMaxMagnitude
};
inline constexpr Input kInputs[] = {Input::kNormal, Input::kConstant,  Input::kOffset, Input::kLoudToken,
                                    Input::kZeros,  Input::kDenormals, Input::kTiny,   Input::kLargest};

// [token][channel], already rounded to the element type.
inline std::vector<float> PaintValues(Input input, int tokens, int channels, std::uint64_t seed,
                                      ElementType type = ElementType::kF32) {
  Random random(seed);
  std::vector<float> values;
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < channels; ++channel) {
      const float normal = Normal(random);
      const float scale = channel % 17 == 3 ? 100.0f : 0.25f + float(channel % 5);
      float value = 0;
      switch (input) {
        case Input::kNormal:
          value = normal * scale;
          break;
        case Input::kConstant:
          value = 0.37f * float(channel) - 11.3f;
          break;
        case Input::kOffset:
          value = (channel % 2 == 0 ? 250.3f : -91.7f) * (1.0f + 0.001f * normal);
          break;
        case Input::kLoudToken:
          value = normal * (token == tokens / 2 ? 100.0f : 1.0f);
          break;
        case Input::kZeros:
          value = normal < 0 ? -0.0f : 0.0f;
          break;
        case Input::kDenormals:
          value = normal * 1e-38f;
          break;
        case Input::kTiny:
          value = normal * 1e-7f;
          break;
        case Input::kLargest:
          value = normal < 0 ? -16384.0f : 16384.0f * float(random.Unit());
          break;
      }
      std::byte bits[4];
      StoreElement(value, type, bits);
      values.push_back(LoadElement(bits, type));
    }
  }
  return values;
}

}  // namespace lynx::testing
