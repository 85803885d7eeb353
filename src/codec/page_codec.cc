#include "codec/page_codec.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "codec/page_io.h"
#include "codec/rope_table.h"

namespace lynx {
namespace {

PageDims DimsOf(const PageShape& shape) { return {shape.tokens, shape.heads * shape.head_dim}; }

// The rows of a page of BF16 elements whose channels lie side by side.
template <typename Byte>
std::optional<BasicRows<Byte>> Bf16Rows(const BasicPage<Byte>& page) {
  const bool dense =
      page.channel_stride == 2 && (page.address.head_count == 1 || page.head_stride == page.head_dim * 2);
  const bool aligned = reinterpret_cast<std::uintptr_t>(page.data) % 2 == 0 && page.token_stride % 2 == 0;
  if (page.element_type != ElementType::kBf16 || !dense || !aligned) return std::nullopt;
  return BasicRows<Byte>{page.data, page.token_stride, ElementType::kBf16};
}

PageShape ShapeOf(const PageAddress& address, int head_dim) {
  return {address.kind, address.head_count, head_dim, address.token_count};
}

}  // namespace

void* Scratch::TakeBytes(std::size_t bytes) {
  LYNX_CHECK(bytes <= bytes_.size());
  const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
  const std::size_t padding = (kAlignment - address % kAlignment) % kAlignment;
  void* taken = bytes_.data() + padding;
  bytes_ = bytes_.subspan(bytes);
  return taken;
}

Status CheckCacheShape(const CacheShape& shape) {
  constexpr int kMaxLayers = 65535;
  if (shape.layers.empty() || shape.layers.size() > kMaxLayers)
    return Invalid("cache shape: 1 to 65535 layers, please");
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    const int widest = std::max(layer.key_dim, layer.value_dim);
    if (layer.kv_heads <= 0 || layer.key_dim < 0 || layer.value_dim < 0 || widest == 0 ||
        std::int64_t{layer.kv_heads} * widest > kMaxPageChannels) {
      return Invalid("cache shape: layer " + std::to_string(i) + " needs 1 to " + std::to_string(kMaxPageChannels) +
                     " channels");
    }
    LYNX_RETURN_IF_ERROR(CheckRope(layer.rope, layer.key_dim));
  }
  return Ok();
}

PageCodec::PageCodec(CodecInfo info, CodecId id, CacheShape shape)
    : info_(std::move(info)), id_(id), fingerprint_(SpecFingerprint(info_.spec)), shape_(std::move(shape)) {
  info_.page_tokens = kPageTokens;
  LYNX_CHECK(info_.stream_count >= 1 && info_.stream_count <= kMaxCodecStreams);
}

std::size_t PageCodec::MaxBytes(const PageShape& shape, int stream) const {
  LYNX_CHECK(stream >= 0 && stream < info_.stream_count);
  PageDims dims = DimsOf(shape);
  dims.element_type = shape_.element_type;
  std::size_t payload = PayloadBytes(dims, stream);
  if (stream == 0) payload = std::max(payload, dims.elements() * ElementBytes(shape_.element_type));
  return kPageStreamHeaderBytes + payload;
}

std::size_t PageCodec::ExpectedBytes(const PageShape& shape, int stream) const {
  return kPageStreamHeaderBytes + ExpectedPayloadBytes(DimsOf(shape), stream);
}

std::size_t PageCodec::ScratchBytes(const PageShape& shape) const {
  const PageDims dims = DimsOf(shape);
  return Scratch::BytesFor<float>(dims.elements()) + WorkBytes(dims);
}

Status PageCodec::CheckPage(const PageAddress& address, int head_dim) const {
  LYNX_RETURN_IF_ERROR(CheckAddress(shape_, address));
  const int layer_dim = shape_.layers[address.layer].HeadDim(address.kind);
  if (head_dim != layer_dim) {
    return Invalid("page has head_dim " + std::to_string(head_dim) + ", its layer " + std::to_string(layer_dim));
  }
  if (address.token_count > kPageTokens) {
    return Invalid("page has " + std::to_string(address.token_count) + " tokens, cut it at multiples of " +
                   std::to_string(kPageTokens));
  }
  return Ok();
}

PageHeader PageCodec::HeaderOf(const PageView& page, bool exact) const {
  PageHeader header;
  header.codec = id_;
  header.fingerprint = fingerprint_;
  header.stream_count = info_.stream_count;
  header.exact = exact;
  header.element_type = page.element_type;
  header.address = page.address;
  header.head_dim = page.head_dim;
  return header;
}

void PageCodec::SealAll(PageHeader header, std::span<const std::size_t> payload_bytes,
                        std::span<const std::span<std::byte>> buffers, std::span<std::size_t> sizes) const {
  std::uint32_t anchor_checksum = 0;
  for (int stream = 0; stream < info_.stream_count; ++stream) {
    header.stream = stream;
    header.anchor_checksum = anchor_checksum;
    sizes[stream] = kPageStreamHeaderBytes + payload_bytes[stream];
    const std::uint32_t checksum = SealPageStream(header, buffers[stream].first(sizes[stream]));
    if (stream == 0) anchor_checksum = checksum;
  }
}

bool PageCodec::EncodePayloads(const PageView& page, const PageDims& dims, std::span<std::byte* const> payloads,
                               std::span<std::size_t> payload_bytes, Scratch scratch) const {
  if (const auto rows = Bf16Rows(page); rows.has_value() && TakesBf16(page.address)) {
    return EncodeRows(*rows, dims, payloads, payload_bytes, scratch);
  }
  float* values = scratch.Take<float>(dims.elements());
  GatherValues(page, 0, dims.tokens, values);
  return AllWithin(values, dims.elements(), kMaxMagnitude) &&
         EncodeRows(RowsOf(values, dims.channels), dims, payloads, payload_bytes, scratch);
}

Status PageCodec::Encode(const PageView& page, std::span<const std::span<std::byte>> buffers,
                         std::span<std::size_t> sizes, std::span<std::byte> scratch) const {
  LYNX_RETURN_IF_ERROR(CheckPage(page.address, page.head_dim));
  if (page.element_type != shape_.element_type) return Invalid("page has another element type than the cache");
  const std::size_t streams = std::size_t(info_.stream_count);
  const PageShape shape = ShapeOf(page.address, page.head_dim);
  if (buffers.size() != streams || sizes.size() != streams) {
    return Invalid("encoding needs " + std::to_string(streams) + " buffers and sizes");
  }
  for (std::size_t stream = 0; stream < streams; ++stream) {
    if (buffers[stream].size() < MaxBytes(shape, int(stream))) {
      return Invalid("buffer of stream " + std::to_string(stream) + " is smaller than MaxBytes");
    }
  }
  if (scratch.size() < ScratchBytes(shape)) return Invalid("scratch is smaller than ScratchBytes");

  std::array<std::size_t, kMaxCodecStreams> payload_bytes{};
  bool exact = AlwaysExact(page.element_type);
  PageDims dims = DimsOf(shape);
  dims.address = page.address;
  dims.element_type = page.element_type;
  dims.tokens_after = page.tokens_after;
  if (!exact) {
    std::array<std::byte*, kMaxCodecStreams> payloads{};
    for (std::size_t stream = 0; stream < streams; ++stream) {
      payloads[stream] = buffers[stream].data() + kPageStreamHeaderBytes;
      payload_bytes[stream] = PayloadBytes(dims, int(stream));
    }
    exact = !EncodePayloads(page, dims, std::span(payloads).first(streams), std::span(payload_bytes).first(streams),
                            Scratch(scratch));
  }
  if (exact) {
    payload_bytes = {};
    GatherBits(page, buffers[0].data() + kPageStreamHeaderBytes);
    payload_bytes[0] = dims.elements() * ElementBytes(page.element_type);
  }
  SealAll(HeaderOf(page, exact), payload_bytes, buffers, sizes);
  return Ok();
}

Status PageCodec::CheckHeader(const PageHeader& header, int stream, const PageSpan& page) const {
  const auto differs = [&](const std::string& what) {
    return std::string("stream ") + std::to_string(stream) + " of the page has another " + what;
  };
  if (header.codec != id_) return Unsupported(differs("codec than " + info_.name));
  if (header.stream_count != info_.stream_count) return Unsupported(differs("stream count than " + info_.spec));
  if (header.fingerprint != fingerprint_) return Unsupported(differs("set of parameters than " + info_.spec));
  if (header.stream != stream) return Invalid(differs("stream number"));
  if (header.address != page.address) return Invalid(differs("address than the destination"));
  if (header.head_dim != page.head_dim) return Invalid(differs("head_dim than the destination"));
  return Ok();
}

Status PageCodec::Open(std::span<const std::span<const std::byte>> streams, const PageSpan& page,
                       OpenedPage* opened) const {
  LYNX_RETURN_IF_ERROR(CheckPage(page.address, page.head_dim));
  if (streams.empty() || streams.size() > std::size_t(info_.stream_count)) {
    return Invalid("decoding takes 1 to " + std::to_string(info_.stream_count) + " streams");
  }
  PageDims& dims = opened->dims;
  dims = DimsOf(ShapeOf(page.address, page.head_dim));
  dims.address = page.address;
  std::uint32_t anchor_checksum = 0;
  for (std::size_t stream = 0; stream < streams.size(); ++stream) {
    LYNX_ASSIGN_OR_RETURN(const OpenedPageStream each, OpenPageStream(streams[stream]));
    const PageHeader& header = each.header;
    LYNX_RETURN_IF_ERROR(CheckHeader(header, int(stream), page));
    if (stream == 0) {
      opened->exact = header.exact;
      dims.element_type = header.element_type;
    }
    if (header.exact != opened->exact || header.element_type != dims.element_type ||
        header.anchor_checksum != anchor_checksum) {
      return Invalid("stream " + std::to_string(stream) + " belongs to another encoding of the page than its stream 0");
    }
    if (stream == 0) anchor_checksum = each.checksum;
    std::size_t payload_bytes = header.exact ? 0 : PayloadBytes(dims, int(stream));
    if (header.exact && stream == 0) payload_bytes = dims.elements() * ElementBytes(header.element_type);
    const bool fits =
        PayloadsVary() && !header.exact ? each.payload.size() <= payload_bytes : each.payload.size() == payload_bytes;
    if (!fits) return Corrupt("page stream payload does not fit the page's shape");
    opened->payloads[stream] = each.payload;
  }
  opened->streams = streams.size();
  return Ok();
}

Status PageCodec::CheckOpened(const OpenedPage& opened, const PageSpan& page, std::span<std::byte> scratch,
                              Scratch* pieces, float** rows) const {
  if (scratch.size() < ScratchBytes(ShapeOf(page.address, page.head_dim))) {
    return Invalid("scratch is smaller than ScratchBytes");
  }
  if (opened.exact) return Ok();
  *pieces = Scratch(scratch);
  *rows = pieces->Take<float>(std::size_t(std::min(opened.dims.tokens, kChunkTokens)) * opened.dims.channels);
  return CheckPayloads(Payloads(opened.payloads).first(opened.streams), opened.dims, *pieces);
}

Status PageCodec::Check(std::span<const std::span<const std::byte>> streams, const PageSpan& page,
                        std::span<std::byte> scratch, OpenedPage* opened) const {
  LYNX_RETURN_IF_ERROR(Open(streams, page, opened));
  Scratch pieces(scratch);
  float* rows = nullptr;
  return CheckOpened(*opened, page, scratch, &pieces, &rows);
}

Status PageCodec::Seal(const PageView& page, std::span<const std::size_t> payload_bytes,
                       std::span<const std::span<std::byte>> buffers, std::span<std::size_t> sizes) const {
  LYNX_RETURN_IF_ERROR(CheckPage(page.address, page.head_dim));
  const std::size_t streams = std::size_t(info_.stream_count);
  bool fits = payload_bytes.size() == streams && buffers.size() == streams && sizes.size() == streams;
  for (std::size_t stream = 0; fits && stream < streams; ++stream) {
    fits = buffers[stream].size() >= kPageStreamHeaderBytes &&
           buffers[stream].size() - kPageStreamHeaderBytes >= payload_bytes[stream];
  }
  if (!fits) return Invalid("sealing needs a buffer per stream with room for header and payload");
  SealAll(HeaderOf(page, false), payload_bytes, buffers, sizes);
  return Ok();
}

Status PageCodec::Decode(std::span<const std::span<const std::byte>> streams, const PageSpan& page,
                         std::span<std::byte> scratch) const {
  // Everything is checked before the first element is written.
  OpenedPage opened;
  LYNX_RETURN_IF_ERROR(Open(streams, page, &opened));
  Scratch pieces(scratch);
  float* rows = nullptr;
  LYNX_RETURN_IF_ERROR(CheckOpened(opened, page, scratch, &pieces, &rows));
  const PageDims& dims = opened.dims;
  if (opened.exact) {
    ScatterBits(opened.payloads[0].data(), dims.element_type, page);
    return Ok();
  }
  const Payloads present = Payloads(opened.payloads).first(opened.streams);
  const auto bf16 = TakesBf16(page.address) ? Bf16Rows(page) : std::nullopt;
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    if (bf16.has_value()) {
      DecodeRows(present, dims, chunk, bf16->From(chunk * kChunkTokens), pieces);
      continue;
    }
    DecodeRows(present, dims, chunk, RowsOf(rows, dims.channels), pieces);
    ScatterValues(rows, chunk * kChunkTokens, dims.ChunkTokens(chunk), page);
  }
  PublishRows();
  return Ok();
}

}  // namespace lynx
