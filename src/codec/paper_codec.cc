#include "codec/paper_codec.h"

#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "codec/kernels.h"
#include "codec/paper_payload.h"

namespace lynx {
namespace {

CodecInfo Info(PaperReading reading, const std::string& spec) {
  CodecInfo info;
  info.name = reading == PaperReading::k120 ? "paper" : "paper127";
  info.spec = spec;
  info.stream_count = 2;
  return info;
}

// All loops have channels inside, without dependence between them: they vectorise, and every width gives the same
// bytes.

// out = (value - base[channel]) / divisor[channel] for `tokens` rows; out may be `values`.
void Normalize(const float* values, int tokens, std::size_t channels, const float* base, const float* divisor,
               float* out) {
  for (int token = 0; token < tokens; ++token) {
    const float* from = values + token * channels;
    float* to = out + token * channels;
    for (std::size_t c = 0; c < channels; ++c) to[c] = (from[c] - base[c]) / divisor[c];
  }
}

// Stage 1: brings the page to [0, 1] channel by channel and writes gamma_min and gamma_scale. base, divisor: work.
void NormalizePage(ConstRows rows, const PageDims& dims, float* base, float* divisor, float* out, std::byte* to) {
  const std::size_t channels = std::size_t(dims.channels);
  SimdKernels().channel_ranges(rows, dims.tokens, dims.channels, base, divisor);
  for (std::size_t c = 0; c < channels; ++c) {
    const std::uint16_t gamma_min = F16Down(base[c]);
    base[c] = F16ToFloat(gamma_min);
    const std::uint16_t gamma_scale = F16Up(divisor[c] - base[c]);
    divisor[c] = PaperDivisor(F16ToFloat(gamma_scale));
    StoreLittle(gamma_min, to + 2 * c);
    StoreLittle(gamma_scale, to + 2 * (channels + c));
  }
  Normalize(ValuesOf(rows), dims.tokens, channels, base, divisor, out);
}

// Stage 2: brings a chunk to [-1, 1] in place and writes mu and sigma. The mean is summed in the order of tokens.
void NormalizeChunk(float* values, int tokens, std::size_t channels, float* mu, float* sigma, std::byte* to) {
  for (std::size_t c = 0; c < channels; ++c) mu[c] = 0.0f;
  for (int token = 0; token < tokens; ++token) {
    for (std::size_t c = 0; c < channels; ++c) mu[c] += values[token * channels + c];
  }
  for (std::size_t c = 0; c < channels; ++c) {
    const std::uint16_t half = FloatToF16(mu[c] / float(tokens));
    StoreLittle(half, to + 2 * c);
    mu[c] = F16ToFloat(half);
    sigma[c] = 0.0f;
  }
  for (int token = 0; token < tokens; ++token) {
    for (std::size_t c = 0; c < channels; ++c) {
      const float deviation = std::fabs(values[token * channels + c] - mu[c]);
      sigma[c] = deviation > sigma[c] ? deviation : sigma[c];
    }
  }
  for (std::size_t c = 0; c < channels; ++c) {
    const std::uint16_t half = F16Up(sigma[c]);
    StoreLittle(half, to + 2 * (channels + c));
    sigma[c] = PaperDivisor(F16ToFloat(half));
  }
  Normalize(values, tokens, channels, mu, sigma, values);
}

}  // namespace

PaperCodec::PaperCodec(const CacheShape& shape, PaperReading reading, double alpha, const std::string& spec)
    : PageCodec(Info(reading, spec), reading == PaperReading::k120 ? CodecId::kPaper : CodecId::kPaper127, shape),
      reading_(reading),
      levels_(alpha, reading == PaperReading::k120 ? 120 : 127) {}

std::size_t PaperCodec::PayloadBytes(const PageDims& dims, int stream) const {
  return PaperPayloadBytes(reading_, dims, stream);
}

std::size_t PaperCodec::WorkBytes(const PageDims& dims) const {
  return Scratch::BytesFor<float>(dims.elements()) + 4 * Scratch::BytesFor<float>(dims.channels);
}

bool PaperCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                            std::span<std::size_t>, Scratch scratch) const {
  const std::size_t channels = std::size_t(dims.channels);
  float* normal = scratch.Take<float>(dims.elements());
  float* base = scratch.Take<float>(channels);
  float* divisor = scratch.Take<float>(channels);
  std::memset(payloads[0], 0, PayloadBytes(dims, 0));
  std::memset(payloads[1], 0, PayloadBytes(dims, 1));
  NormalizePage(rows, dims, base, divisor, normal, payloads[0]);
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    const int tokens = dims.ChunkTokens(chunk);
    float* values = normal + chunk * kChunkTokens * channels;
    std::byte* scales = payloads[0] + PaperChunkOffset(reading_, dims.channels, chunk);
    std::byte* anchor = scales + 4 * channels;
    std::byte* fifth = anchor + RowBytes(tokens, dims.channels, 4);
    std::byte* residual = payloads[1] + PaperResidualOffset(dims.channels, chunk);
    NormalizeChunk(values, tokens, channels, base, divisor, scales);
    // Stages 3 and 4.
    for (int token = 0; token < tokens; ++token) {
      for (int c = 0; c < dims.channels; ++c) {
        const float x = values[token * channels + c];
        const int level = levels_.LevelOf(std::fabs(x));
        const int coarse = PaperCoarse(level);
        const int code = PaperAnchor(coarse, x < 0.0f);
        PutRow(anchor, dims.channels, 4, token, c, code & 15);
        if (reading_ == PaperReading::k127) PutRow(fifth, dims.channels, 1, token, c, code >> 4 & 1);
        PutRow(residual, dims.channels, 4, token, c, PaperResidual(coarse, level) & 15);
      }
    }
  }
  return true;
}

Status PaperCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch) const {
  const auto finite = [&](std::size_t offset) { return AllF16Finite(payloads[0].data() + offset, 2 * dims.channels); };
  bool all = finite(0);
  for (int chunk = 0; chunk < dims.chunks(); ++chunk)
    all = all && finite(PaperChunkOffset(reading_, dims.channels, chunk));
  return all ? Ok() : Corrupt("page stream has a scale that is not finite");
}

void PaperCodec::DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const {
  const std::size_t channels = std::size_t(dims.channels);
  const int tokens = dims.ChunkTokens(chunk);
  const std::byte* page_scales = payloads[0].data();
  const std::byte* scales = page_scales + PaperChunkOffset(reading_, dims.channels, chunk);
  const std::byte* anchor = scales + 4 * channels;
  const std::byte* fifth = anchor + RowBytes(tokens, dims.channels, 4);
  const std::byte* residual =
      payloads.size() > 1 ? payloads[1].data() + PaperResidualOffset(dims.channels, chunk) : nullptr;
  float* gamma_min = scratch.Take<float>(channels);
  float* gamma_scale = scratch.Take<float>(channels);
  float* mu = scratch.Take<float>(channels);
  float* sigma = scratch.Take<float>(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    gamma_min[c] = LoadF16(page_scales + 2 * c);
    gamma_scale[c] = LoadF16(page_scales + 2 * (channels + c));
    mu[c] = LoadF16(scales + 2 * c);
    sigma[c] = LoadF16(scales + 2 * (channels + c));
  }
  float* value = ValuesOf(rows);
  for (int token = 0; token < tokens; ++token) {
    for (int c = 0; c < dims.channels; ++c) {
      const int code = PaperGetAnchor(reading_, anchor, fifth, dims.channels, token, c);
      const int finer = residual != nullptr ? SignedNibble(GetRow(residual, dims.channels, 4, token, c)) : 0;
      *value++ = PaperValueOf(levels_, code, finer, {gamma_min[c], gamma_scale[c], mu[c], sigma[c]});
    }
  }
}

}  // namespace lynx
