// For tests: a codec with three streams. BF16 elements cut into sign, exponent and one mantissa bit, then three more
// bits each; any prefix decodes with zeros for what is missing.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "base/check.h"
#include "lynx/codec.h"

namespace lynx {

class ThreeStreamCodec : public Codec {
 public:
  explicit ThreeStreamCodec(int page_tokens = 32) {
    info_.name = "three";
    info_.spec = "three";
    info_.stream_count = 3;
    info_.page_tokens = page_tokens;
    info_.heads_per_page = 1;
  }

  const CodecInfo& info() const override { return info_; }

  std::size_t ExpectedBytes(const PageShape& shape, int stream) const override { return MaxBytes(shape, stream); }
  std::size_t MaxBytes(const PageShape& shape, int) const override {
    return 2 * std::size_t(shape.heads) * std::size_t(shape.head_dim) * std::size_t(shape.tokens);
  }
  std::size_t ScratchBytes(const PageShape&) const override { return 0; }

  Status Encode(const PageView& page, std::span<const std::span<std::byte>> buffers, std::span<std::size_t> sizes,
                std::span<std::byte>) const override {
    LYNX_CHECK(page.element_type == ElementType::kBf16);
    for (int stream = 0; stream < 3; ++stream) {
      sizes[stream] = 0;
      ForEach(page, [&](const std::byte* element) {
        StoreLittle(std::uint16_t(LoadLittle<std::uint16_t>(element) & kMasks[stream]),
                    &buffers[stream][sizes[stream]]);
        sizes[stream] += 2;
      });
    }
    return Ok();
  }

  Status Decode(std::span<const std::span<const std::byte>> streams, const PageSpan& page,
                std::span<std::byte>) const override {
    for (std::size_t stream = 0; stream < streams.size(); ++stream) {
      if (streams[stream].size() != std::size_t(2 * page.elements())) return Corrupt("page stream has another length");
      for (std::size_t at = 0; at < streams[stream].size(); at += 2) {
        if (LoadLittle<std::uint16_t>(&streams[stream][at]) & ~kMasks[stream]) return Corrupt("bits of another stream");
      }
    }
    std::size_t at = 0;
    ForEach(page, [&](std::byte* element) {
      std::uint16_t bits = 0;
      for (const auto& stream : streams) bits |= LoadLittle<std::uint16_t>(&stream[at]);
      StoreLittle(bits, element);
      at += 2;
    });
    return Ok();
  }

 private:
  static constexpr std::array<std::uint16_t, 3> kMasks = {0xffc0, 0x0038, 0x0007};

  template <typename Page, typename Function>
  static void ForEach(const Page& page, const Function& function) {
    for (int token = 0; token < page.address.token_count; ++token) {
      for (int head = 0; head < page.address.head_count; ++head) {
        for (int channel = 0; channel < page.head_dim; ++channel) function(page.At(token, head, channel));
      }
    }
  }

  CodecInfo info_;
};

}  // namespace lynx
