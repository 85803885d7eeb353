// Codecs: page <-> streams. A codec decodes from any non-empty prefix of its streams; whole-cache formats are codecs
// with one stream. The byte formats are normative in docs/codec.md.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

// The dimensions of a page that its encoded size depends on.
struct PageShape {
  KvKind kind = KvKind::kKey;
  int heads = 0;
  int head_dim = 0;
  int tokens = 0;
};

// The dimensions of a page of this cache. The address must fit (CheckAddress).
inline PageShape ShapeOf(const CacheShape& cache, const PageAddress& page) {
  return {page.kind, page.head_count, cache.layers[std::size_t(page.layer)].HeadDim(page.kind), page.token_count};
}

struct CodecInfo {
  std::string name;  // "nested"
  std::string spec;  // canonical, "nested:anchor=4,recent=64,unrope=0": equal specs are equal formats (docs/codec.md)
  int stream_count = 1;
  int page_tokens = 256;       // pages are cut at multiples of this
  int heads_per_page = 0;      // 0: a page holds all KV heads of a layer
  bool couples_heads = false;  // true: a page can't be cut by heads without decoding (int8, int4)
};

// Immutable and thread-safe. Buffers and scratch belong to the caller; no call allocates.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual const CodecInfo& info() const = 0;

  // Upper bound of one encoded page stream, header and checksum included.
  virtual std::size_t MaxBytes(const PageShape& shape, int stream) const = 0;
  // What an encoded page stream usually takes, for estimates of arrival; at most MaxBytes. (MaxBytes of stream 0 covers
  // pages that can only travel exactly.)
  virtual std::size_t ExpectedBytes(const PageShape& shape, int stream) const = 0;
  // Scratch that Encode and Decode need for a page of this shape.
  virtual std::size_t ScratchBytes(const PageShape& shape) const = 0;

  // Encodes all streams of a page: buffers[k] (at least MaxBytes(shape, k)) receives stream k, sizes[k] its length.
  // kInvalid when a buffer or the scratch is too small or the page does not fit the codec's cache shape.
  virtual Status Encode(const PageView& page, std::span<const std::span<std::byte>> buffers,
                        std::span<std::size_t> sizes, std::span<std::byte> scratch) const = 0;

  // Decodes from the first streams.size() streams (at least one) into the page. Transactional: on error (kCorrupt,
  // kUnsupported, kInvalid) no byte of the page is changed. The streams must be of this codec and of this address.
  virtual Status Decode(std::span<const std::span<const std::byte>> streams, const PageSpan& page,
                        std::span<std::byte> scratch) const = 0;
};

// What calibration learned about a model (the `lynx` codec); opaque here.
struct Profile {
  std::vector<std::byte> bytes;
};

// Builds a codec from "name" or "name:parameter=value,…". Errors: kInvalid with the offending parameter and the ones
// that exist, kUnsupported for an unknown name with the list of names.
Result<std::unique_ptr<Codec>> MakeCodec(std::string_view spec, const CacheShape& shape,
                                         const Profile* profile = nullptr);

// Names that MakeCodec knows, in the order of docs/codec.md.
std::vector<std::string> CodecNames();

}  // namespace lynx
