#include "codec/raw_codec.h"

#include "base/bytes.h"
#include "base/float16.h"

namespace lynx {
namespace {

CodecInfo Info() {
  CodecInfo info;
  info.name = "raw";
  info.spec = "raw";
  return info;
}

}  // namespace

RawCodec::RawCodec(const CacheShape& shape) : PageCodec(Info(), CodecId::kRaw, shape) {}

std::size_t RawCodec::PayloadBytes(const PageDims& dims, int) const { return 2 * dims.elements(); }
std::size_t RawCodec::WorkBytes(const PageDims&) const { return 0; }

// Payload: the BF16 bits of [token][channel].
bool RawCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                          std::span<std::size_t>, Scratch) const {
  const float* values = ValuesOf(rows);
  for (std::size_t i = 0; i < dims.elements(); ++i) StoreLittle(FloatToBf16(values[i]), payloads[0] + 2 * i);
  return true;
}

Status RawCodec::CheckPayloads(Payloads, const PageDims&, Scratch) const { return Ok(); }

void RawCodec::DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch) const {
  const std::size_t row_bytes = 2 * std::size_t(dims.channels);
  const std::byte* from = payloads[0].data() + chunk * kChunkTokens * row_bytes;
  const std::size_t count = std::size_t(dims.ChunkTokens(chunk)) * dims.channels;
  for (std::size_t i = 0; i < count; ++i) ValuesOf(rows)[i] = Bf16ToFloat(LoadLittle<std::uint16_t>(from + 2 * i));
}

}  // namespace lynx
