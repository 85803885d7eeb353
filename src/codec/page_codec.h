// What all codecs share: checks, gathering and scattering, the envelope, and pages that travel exactly. A codec adds
// only its payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/kernels.h"
#include "codec/page_stream.h"
#include "lynx/codec.h"

namespace lynx {

inline constexpr int kChunkTokens = 32;
inline constexpr int kPageTokens = 256;
inline constexpr int kMaxCodecStreams = 8;
// One page stream in F32 stays at 16 MiB; the largest models have 128 heads of 128 channels.
inline constexpr int kMaxPageChannels = 16384;
// Pages with a larger magnitude (or a non-finite value) travel exactly: the range of a channel, at most twice this,
// must fit the FP16 metadata (65504).
inline constexpr float kMaxMagnitude = 16384.0f;

struct PageDims {
  int tokens = 0;
  int channels = 0;
  // Of the page that is encoded or decoded; unset where only sizes are asked for.
  PageAddress address = {};
  ElementType element_type = ElementType::kBf16;  // of the page that was encoded
  int tokens_after = -1;                          // as in BasicPage; unset when decoding
  constexpr int chunks() const { return (tokens + kChunkTokens - 1) / kChunkTokens; }
  constexpr int ChunkTokens(int chunk) const {
    const int left = tokens - chunk * kChunkTokens;
    return left < kChunkTokens ? left : kChunkTokens;
  }
  constexpr int head_dim() const { return channels / address.head_count; }
  constexpr std::size_t elements() const { return std::size_t(tokens) * std::size_t(channels); }
};

// Hands out pieces of the caller's scratch, each aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T* Take(std::size_t count) {
    return static_cast<T*>(TakeBytes(BytesFor<T>(count)));
  }
  // What Take<T>(count) consumes at most, alignment included.
  template <typename T>
  static std::size_t BytesFor(std::size_t count) {
    return count * sizeof(T) + kAlignment;
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  void* TakeBytes(std::size_t bytes);
  std::span<std::byte> bytes_;
};

// A page whose streams were opened.
struct OpenedPage {
  PageDims dims;
  bool exact = false;  // payloads[0] holds the elements' own bits
  std::size_t streams = 0;
  std::array<std::span<const std::byte>, kMaxCodecStreams> payloads;
};

class PageCodec : public Codec {
 public:
  // Sets info.page_tokens.
  PageCodec(CodecInfo info, CodecId id, CacheShape shape);

  const CodecInfo& info() const final { return info_; }
  std::size_t MaxBytes(const PageShape& shape, int stream) const final;
  std::size_t ExpectedBytes(const PageShape& shape, int stream) const final;
  std::size_t ScratchBytes(const PageShape& shape) const final;
  Status Encode(const PageView& page, std::span<const std::span<std::byte>> buffers, std::span<std::size_t> sizes,
                std::span<std::byte> scratch) const final;
  Status Decode(std::span<const std::span<const std::byte>> streams, const PageSpan& page,
                std::span<std::byte> scratch) const final;

  // For those who decode and encode elsewhere. What Decode checks before it writes: of Open headers, checksums and
  // lengths, of Check payloads, too. The page needs no data.
  Status Open(std::span<const std::span<const std::byte>> streams, const PageSpan& page, OpenedPage* opened) const;
  Status Check(std::span<const std::span<const std::byte>> streams, const PageSpan& page, std::span<std::byte> scratch,
               OpenedPage* opened) const;
  // Completes the streams of a page whose payloads lie kPageStreamHeaderBytes behind the beginnings of the buffers.
  Status Seal(const PageView& page, std::span<const std::size_t> payload_bytes,
              std::span<const std::span<std::byte>> buffers, std::span<std::size_t> sizes) const;

 protected:
  using Payloads = std::span<const std::span<const std::byte>>;  // of the streams at hand, at least one

  // True when pages of this element type always travel exactly.
  virtual bool AlwaysExact(ElementType) const { return false; }
  // The length of a payload; the decoder refuses any other. From a codec whose payloads vary: the greatest length.
  virtual std::size_t PayloadBytes(const PageDims& dims, int stream) const = 0;
  virtual bool PayloadsVary() const { return false; }
  virtual std::size_t ExpectedPayloadBytes(const PageDims& dims, int stream) const {
    return PayloadBytes(dims, stream);
  }
  // True when EncodeRows and DecodeRows take BF16 rows, too: the page's own, where channels lie side by side.
  virtual bool TakesBf16(const PageAddress&) const { return false; }
  // Scratch of EncodeRows, and of CheckPayloads and DecodeRows, as a sum of Scratch::BytesFor.
  virtual std::size_t WorkBytes(const PageDims& dims) const = 0;
  // Rows of F32 are dense, finite, magnitudes <= kMaxMagnitude; rows of BF16 hold any values. payload_bytes[k] is the
  // room of payloads[k], PayloadBytes(dims, k); a codec whose payloads vary lowers it to what it wrote. False: the page
  // travels exactly, as it would not become shorter or a BF16 value is not finite or too large.
  virtual bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                          std::span<std::size_t> payload_bytes, Scratch scratch) const = 0;
  // What could make a payload of the right length unusable (non-finite metadata): kCorrupt. May leave in scratch what
  // DecodeRows, which gets the same pieces, needs.
  virtual Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const = 0;
  // Reconstructs one chunk into its rows, dense where they are F32. May write past the caches; the caller does
  // PublishRows (kernels.h).
  virtual void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const = 0;

 private:
  Status CheckPage(const PageAddress& address, int head_dim) const;
  PageHeader HeaderOf(const PageView& page, bool exact) const;
  bool EncodePayloads(const PageView& page, const PageDims& dims, std::span<std::byte* const> payloads,
                      std::span<std::size_t> payload_bytes, Scratch scratch) const;
  Status CheckHeader(const PageHeader& header, int stream, const PageSpan& page) const;
  // CheckPayloads with pieces of scratch, those behind the rows of a chunk.
  Status CheckOpened(const OpenedPage& opened, const PageSpan& page, std::span<std::byte> scratch, Scratch* pieces,
                     float** rows) const;
  void SealAll(PageHeader header, std::span<const std::size_t> payload_bytes,
               std::span<const std::span<std::byte>> buffers, std::span<std::size_t> sizes) const;

  CodecInfo info_;
  CodecId id_;
  std::uint16_t fingerprint_;
  CacheShape shape_;
};

// kInvalid when a layer has no channels, or more heads or channels than a page stream can say.
Status CheckCacheShape(const CacheShape& shape);

}  // namespace lynx
