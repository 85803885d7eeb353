#include "baselines/baseline_codec.h"

#include <cstring>

#include "base/check.h"
#include "codec/codec_spec.h"
#include "codec/page_io.h"

namespace lynx {
namespace {

constexpr int kMaxStreams = 2;

CodecInfo Info(const std::string& spec, int stream_count) {
  CodecInfo info;
  info.name = CodecNameOf(spec);
  info.spec = spec;
  info.stream_count = stream_count;
  info.couples_heads = true;  // a string of bits can't be cut
  return info;
}

}  // namespace

BaselineCodec::BaselineCodec(const std::string& spec, CodecId id, const CacheShape& shape, int stream_count)
    : PageCodec(Info(spec, stream_count), id, shape) {
  LYNX_CHECK(stream_count <= kMaxStreams);
}

std::size_t BaselineCodec::PayloadBytes(const PageDims& dims, int stream) const {
  return (stream == 0 ? 2 : 1) * dims.elements();
}

std::size_t BaselineCodec::WorkBytes(const PageDims& dims) const {
  return Scratch::BytesFor<float>(dims.elements()) + PageWorkBytes(dims);
}

bool BaselineCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                               std::span<std::size_t> payload_bytes, Scratch scratch) const {
  const auto room = [&](std::size_t k) {
    return k < payloads.size() ? std::span(payloads[k], payload_bytes[k]) : std::span<std::byte>();
  };
  BitWriter writers[kMaxStreams] = {BitWriter(room(0)), BitWriter(room(1))};
  Write(ValuesOf(rows), dims, std::span(writers).first(payloads.size()), scratch);
  bool fits = true;
  for (std::size_t k = 0; k < payloads.size(); ++k) {
    writers[k].Finish();
    payload_bytes[k] = writers[k].bytes();
    fits = fits && writers[k].ok();
  }
  return fits;
}

// Decodes the whole page: DecodeRows only copies.
Status BaselineCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const {
  float* values = scratch.Take<float>(dims.elements());
  BitReader readers[kMaxStreams] = {BitReader(payloads[0]),
                                    BitReader(payloads.size() > 1 ? payloads[1] : std::span<const std::byte>())};
  if (!Read(std::span(readers).first(payloads.size()), dims, values, scratch))
    return Corrupt("page stream has an impossible code");
  for (std::size_t k = 0; k < payloads.size(); ++k) {
    if (!readers[k].ok() || readers[k].bytes() != payloads[k].size()) {
      return Corrupt("page stream does not end where its codes do");
    }
  }
  constexpr float kLargest = 3e38f;
  return AllWithin(values, dims.elements(), kLargest) ? Ok() : Corrupt("page stream has a scale that is not finite");
}

void BaselineCodec::DecodeRows(Payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const {
  const float* values = scratch.Take<float>(dims.elements());
  const std::size_t row = std::size_t(dims.channels);
  std::memcpy(rows.data, values + chunk * kChunkTokens * row, dims.ChunkTokens(chunk) * row * sizeof(float));
}

}  // namespace lynx
