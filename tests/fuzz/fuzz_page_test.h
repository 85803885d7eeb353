// What the fuzz targets of codecs share: choices read from the fuzzer's bytes, pages and streams made from them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "codec/catalog.h"
#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {

// Choices from the front of the input; zeros once it is used up.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : bytes_(std::as_bytes(std::span(data, size))) {}
  std::size_t left() const { return bytes_.size(); }
  template <typename T>
  T Take() {
    std::byte value[sizeof(T)] = {};
    const auto taken = TakeUpTo(sizeof(T));
    std::copy(taken.begin(), taken.end(), value);
    return LoadLittle<T>(value);
  }
  int Below(int bound) { return Take<std::uint8_t>() % bound; }
  std::span<const std::byte> TakeUpTo(std::size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

// Append only: inputs name a spec by its place. Codecs of the catalog that are not listed follow at the end.
inline const std::vector<std::string>& FuzzSpecs() {
  static const std::vector<std::string> specs = [] {
    std::vector<std::string> list{"raw",
                                  "int8",
                                  "int4",
                                  "paper",
                                  "paper127:alpha=4",
                                  "nested",
                                  "lynx",
                                  "lynx:anchor_bits=4.5,streams=3",
                                  "lynx:anchor_bits=1.2,recent=3,unrope=0",
                                  "nested:anchor=3,recent=20,unrope=1",
                                  "nested:anchor=5,recent=0",
                                  "nested:anchor=6,recent=255",
                                  "lynx:exact=1"};
    for (const std::string& name : CodecNames()) {
      const auto listed = [&](const std::string& spec) { return spec.substr(0, spec.find(':')) == name; };
      if (std::none_of(list.begin(), list.end(), listed)) list.push_back(name);
    }
    return list;
  }();
  return specs;
}

// Where a page lies and how its layer looks.
struct FuzzPlace {
  PageAddress address;
  int head_dim = 1;
  ElementType type = ElementType::kBf16;
  RopePairing pairing = RopePairing::kNone;
  int tokens_after = -1;
};

// For this codec: some take BF16 only.
inline FuzzPlace TakePlace(const std::string& spec, FuzzInput* input) {
  constexpr int kDims[] = {8, 1, 2, 3, 16, 33, 64, 40};
  constexpr int kTokens[] = {5, 20, 1, 2, 31, 32, 33, 64, 100, 255, 256};
  constexpr int kFirst[] = {0, 1, 3, 4, 512};
  FuzzPlace place;
  place.type = ElementType(input->Below(3));
  if (spec.ends_with("exact=1")) place.type = ElementType::kBf16;
  place.head_dim = kDims[input->Below(int(std::size(kDims)))];
  const int heads = 1 + input->Below(3);
  // Large enough for every branch, small enough for a thousand pages per second.
  const int tokens = std::min(kTokens[input->Below(int(std::size(kTokens)))], 2048 / (heads * place.head_dim));
  place.address = {1, KvKind(input->Below(2)), 3 - heads, heads, kFirst[input->Below(int(std::size(kFirst)))], tokens};
  if (place.head_dim > 1) place.pairing = RopePairing(input->Below(3));
  place.tokens_after = input->Below(128) - 1;
  return place;
}

inline CacheShape ShapeOf(const FuzzPlace& place) {
  CacheShape shape = ShapeFor(3, place.head_dim, place.type);
  if (place.pairing != RopePairing::kNone) {
    RopeShape rope{place.pairing, place.head_dim % 2, place.head_dim / 2 * 2, {}};
    for (int pair = 0; pair < rope.dims / 2; ++pair) rope.radians_per_token.push_back(1.0f / float(1 + 3 * pair));
    for (LayerShape& layer : shape.layers) layer.rope = rope;
  }
  return shape;
}

// With these kernels, or those of MakeCodec. Codecs are built once: their tables cost more than a small page.
inline const Codec& CodecFor(const std::string& spec, const FuzzPlace& place, const CodecKernels* kernels = nullptr) {
  static std::map<std::tuple<std::string, int, ElementType, RopePairing, const CodecKernels*>, std::unique_ptr<Codec>>
      codecs;
  auto& codec = codecs[{spec, place.head_dim, place.type, place.pairing, kernels}];
  if (codec == nullptr) {
    const CacheShape shape = ShapeOf(place);
    codec = (kernels != nullptr ? MakeCodecWith(*kernels, spec, shape) : MakeCodec(spec, shape)).value();
  }
  return *codec;
}

inline PageView ViewOf(const PageMemory& memory, const FuzzPlace& place) {
  PageView view = memory.view();
  view.tokens_after = place.tokens_after;
  return view;
}

// Values by one of the painters of the codec tests, then the input's own: bits of any kind, or numbers that codecs do
// not refuse, at places that repeat through the page.
inline PageMemory TakePage(FuzzInput* input, const FuzzPlace& place, Layout layout = Layout::kDense) {
  PageMemory memory(place.address, place.head_dim, place.type, layout);
  const Input paint = kInputs[input->Below(int(std::size(kInputs)))];
  const int style = input->Below(4);
  const int stride = 1 + input->Take<std::uint8_t>();
  const int tokens = place.address.token_count, channels = place.address.head_count * place.head_dim;
  std::vector<float> values = PaintValues(paint, tokens, channels, 1, place.type);
  if (style != 0 && input->left() > 0) {
    const auto bytes = input->TakeUpTo(1 << 12);
    for (std::size_t i = 0, at = 0; i < values.size(); i += std::size_t(stride), at += 4) {
      std::uint32_t bits = 0;
      for (std::size_t k = 0; k < 4; ++k) bits |= std::uint32_t(bytes[(at + k) % bytes.size()]) << (8 * k);
      if (style == 1) bits = (bits & 0x8fffffff) | 0x30000000;  // magnitudes 2^-31 to 2
      if (style == 2) bits = (bits & 0xc6ffffff) | 0x02000000;  // tiny, or up to the greatest that travel coded
      std::byte element[4];
      StoreLittle(bits, element);
      values[i] = LoadElement(element, ElementType::kF32);
    }
  }
  memory.Fill(values);
  return memory;
}

// Streams that a peer might send for this page: an encoding of it with bytes replaced, or payloads of the input's own
// bytes, or anything; mostly behind valid checksums.
inline Streams TakeStreams(FuzzInput* input, const Codec& codec, const FuzzPlace& place) {
  const int mode = input->Below(4);
  const bool seal = input->Below(8) != 7, link = input->Below(8) != 7;
  const Input paint = kInputs[input->Below(int(std::size(kInputs)))];
  PageMemory source(place.address, place.head_dim, place.type);
  source.Fill(PaintValues(paint, place.address.token_count, place.address.head_count * place.head_dim, 1, place.type));
  Streams streams = EncodePage(codec, ViewOf(source, place)).value();
  streams.resize(1 + std::size_t(input->Below(int(streams.size()))));
  const std::size_t first = mode == 1 ? 0 : kPageStreamHeaderBytes;  // mode 1: headers too
  const int cut = int(input->Take<std::int8_t>());                   // bytes more or less in one of them; mostly none
  if (cut % 8 == 1) {
    auto& stream = streams[std::size_t(cut & 1) % streams.size()];
    stream.resize(std::size_t(std::max<std::int64_t>(0, std::int64_t(stream.size()) + cut / 8)));
  }
  if (mode <= 1) {
    while (input->left() >= 3) {
      auto& stream = streams[std::size_t(input->Below(int(streams.size())))];
      const std::size_t at = first + input->Take<std::uint16_t>() % 1024;
      const auto value = input->Take<std::uint8_t>();
      if (at < stream.size()) stream[at] = std::byte(value);
    }
  } else {
    for (auto& stream : streams) {  // mode 2: of the right length; mode 3: of any
      const auto bytes = input->TakeUpTo(mode == 3 ? input->Take<std::uint16_t>() % 2048 : stream.size());
      if (mode == 3) stream.resize(std::min(stream.size(), kPageStreamHeaderBytes) + bytes.size());
      if (stream.size() > kPageStreamHeaderBytes) {
        const std::size_t count = std::min(bytes.size(), stream.size() - kPageStreamHeaderBytes);
        std::copy_n(bytes.begin(), count, stream.begin() + std::ptrdiff_t(kPageStreamHeaderBytes));
      }
    }
  }
  for (auto& stream : streams) stream.shrink_to_fit();  // so that AddressSanitizer sees a read past the end
  if (seal) Reseal(&streams, link);
  return streams;
}

// Decodes with scratch that holds `dirt`: nothing may depend on it.
inline Status DecodeInto(const Codec& codec, const Streams& streams, std::byte dirt, const PageMemory* page) {
  const std::vector<std::span<const std::byte>> prefix(streams.begin(), streams.end());
  auto scratch = ScratchFor(codec, page->span().address, page->span().head_dim);
  std::fill(scratch.begin(), scratch.end(), dirt);
  return codec.Decode(prefix, page->span(), scratch);
}

}  // namespace lynx::testing
