#include "codec/integer_codec.h"

#include "base/bytes.h"
#include "base/check.h"
#include "codec/elements.h"
#include "codec/page_io.h"

namespace lynx {
namespace {

// Payload: step (FP16) per token, then the codes: bytes [token][channel] for int8, nibble rows for int4.
CodecInfo Info(int bits) {
  CodecInfo info;
  info.name = bits == 8 ? "int8" : "int4";
  info.spec = info.name;
  info.couples_heads = true;
  return info;
}

}  // namespace

IntegerCodec::IntegerCodec(const CacheShape& shape, const CodecKernels& kernels, int bits)
    : PageCodec(Info(bits), bits == 8 ? CodecId::kInt8 : CodecId::kInt4, shape), kernels_(kernels), bits_(bits) {
  LYNX_CHECK(bits == 8 || bits == 4);
}

std::size_t IntegerCodec::CodeBytes(int tokens, int channels) const {
  return bits_ == 8 ? std::size_t(tokens) * std::size_t(channels) : NibbleBytes(tokens, channels);
}

std::size_t IntegerCodec::PayloadBytes(const PageDims& dims, int) const {
  return 2 * std::size_t(dims.tokens) + CodeBytes(dims.tokens, dims.channels);
}

std::size_t IntegerCodec::WorkBytes(const PageDims& dims) const { return Scratch::BytesFor<float>(dims.tokens); }

bool IntegerCodec::EncodeValues(const float* values, const PageDims& dims, std::span<std::byte* const> payloads,
                                std::span<std::size_t> payload_bytes, Scratch scratch) const {
  return EncodeRows(RowsOf(values, dims.channels), dims, payloads, payload_bytes, scratch);
}

bool IntegerCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                              std::span<std::size_t>, Scratch scratch) const {
  float* inverse_steps = scratch.Take<float>(dims.tokens);
  kernels_.token_magnitudes(rows, dims.tokens, dims.channels, inverse_steps);
  if (!AllWithin(inverse_steps, std::size_t(dims.tokens), kMaxMagnitude)) return false;
  const float greatest_code = bits_ == 8 ? 127.0f : 7.0f;
  for (int token = 0; token < dims.tokens; ++token) {
    const std::uint16_t step = IntegerStepOf(inverse_steps[token], greatest_code);
    StoreLittle(step, payloads[0] + 2 * token);
    inverse_steps[token] = IntegerInverse(F16ToFloat(step));
  }
  kernels_.integer_quantize(rows, dims.tokens, dims.channels, bits_, inverse_steps, payloads[0] + 2 * dims.tokens);
  return true;
}

Status IntegerCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch) const {
  return AllF16Finite(payloads[0].data(), dims.tokens) ? Ok() : Corrupt("page stream has a step that is not finite");
}

void IntegerCodec::DecodeChunk(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const {
  DecodeRows(payloads, dims, chunk, RowsOf(rows, dims.channels), scratch);
}

void IntegerCodec::DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const {
  const int first = chunk * kChunkTokens;
  const int tokens = dims.ChunkTokens(chunk);
  float* steps = scratch.Take<float>(tokens);
  for (int token = 0; token < tokens; ++token) {
    steps[token] = LoadF16(payloads[0].data() + 2 * (first + token));
  }
  const std::byte* codes = payloads[0].data() + 2 * dims.tokens + CodeBytes(first, dims.channels);
  kernels_.integer_reconstruct(codes, tokens, dims.channels, bits_, steps, rows);
}

}  // namespace lynx
