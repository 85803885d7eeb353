// `paper` and `paper127` on a GPU: one thread per channel of a chunk decodes, one per channel of a page encodes. Bytes
// and values are those of PaperCodec.
#pragma once

#include <cmath>

#include "codec/paged_cache.h"
#include "codec/paper_payload.h"

namespace lynx {

struct PaperDecodeJob {
  const DevicePage* pages = nullptr;  // all of one layer and kind
  PagedCache cache;
  const PaperLevels* levels = nullptr;
  PaperReading reading = PaperReading::k120;
};

LYNX_KERNEL void PaperDecodeThread(const PaperDecodeJob& job, int page_index, int chunk, int channel) {
  const DevicePage& page = job.pages[page_index];
  const PageDims& dims = page.dims;
  if (chunk >= dims.chunks() || channel >= dims.channels) return;
  const ChannelUnit unit = UnitOf({}, dims.head_dim(), channel);
  const int begin = chunk * kChunkTokens, tokens = dims.ChunkTokens(chunk);
  if (page.exact) return CopyExact(page, job.cache, unit, begin, begin + tokens);

  const std::byte* from = page.payloads[0];
  const std::byte* chunk_scales = from + PaperChunkOffset(job.reading, dims.channels, chunk);
  const std::byte* anchor = chunk_scales + 4 * dims.channels;
  const std::byte* fifth = anchor + RowBytes(tokens, dims.channels, 4);
  const std::byte* residual = page.streams > 1 ? page.payloads[1] + PaperResidualOffset(dims.channels, chunk) : nullptr;
  const int greatest = 2 * (dims.channels + channel);
  const PaperScales scales = {LoadF16(from + 2 * channel), LoadF16(from + greatest),
                              LoadF16(chunk_scales + 2 * channel), LoadF16(chunk_scales + greatest)};
  for (int token = 0; token < tokens; ++token) {
    const int code = PaperGetAnchor(job.reading, anchor, fifth, dims.channels, token, channel);
    const int finer = residual != nullptr ? SignedNibble(GetRow(residual, dims.channels, 4, token, channel)) : 0;
    *CacheAt(job.cache, dims, begin + token, unit, 0) = FloatToBf16(PaperValueOf(*job.levels, code, finer, scales));
  }
}

struct PaperEncodeJob {
  const DeviceTarget* pages = nullptr;
  PagedCache cache;
  const PaperLevels* levels = nullptr;
  PaperReading reading = PaperReading::k120;
};

// A channel brought to [0, 1], one value at a time.
struct PaperChannel {
  const PaperEncodeJob& job;
  const PageDims& dims;
  ChannelUnit unit;
  float base = 0.0f, divisor = 1.0f;
  LYNX_KERNEL float Normal(int token) const {
    return (Bf16ToFloat(*CacheAt(job.cache, dims, token, unit, 0)) - base) / divisor;
  }
};

// Stages 2 to 4 of the tokens begin … begin + tokens - 1.
LYNX_KERNEL void PaperEncodeChunk(const PaperChannel& of, int begin, int tokens, std::byte* scales,
                                  std::byte* residual) {
  const int channels = of.dims.channels, channel = of.unit.in_page[0];
  float sum = 0.0f;
  for (int token = 0; token < tokens; ++token) sum += of.Normal(begin + token);
  const std::uint16_t mean = FloatToF16(sum / float(tokens));
  const float mu = F16ToFloat(mean);
  float sigma = 0.0f;
  for (int token = 0; token < tokens; ++token) {
    const float deviation = std::fabs(of.Normal(begin + token) - mu);
    sigma = deviation > sigma ? deviation : sigma;
  }
  const std::uint16_t half = F16Up(sigma);
  const float divisor = PaperDivisor(F16ToFloat(half));
  StoreLittle(mean, scales + 2 * channel);
  StoreLittle(half, scales + 2 * (channels + channel));
  std::byte* anchor = scales + 4 * channels;
  std::byte* fifth = anchor + RowBytes(tokens, channels, 4);
  int codes = 0, finer = 0, fifths = 0;  // a byte each, stored when full
  for (int token = 0; token < tokens; ++token) {
    const float x = (of.Normal(begin + token) - mu) / divisor;
    const int level = of.job.levels->LevelOf(std::fabs(x));
    const int coarse = PaperCoarse(level), code = PaperAnchor(coarse, x < 0.0f);
    codes |= (code & 15) << (token % 2 * 4);
    finer |= (PaperResidual(coarse, level) & 15) << (token % 2 * 4);
    fifths |= (code >> 4 & 1) << (token % 8);
    const bool last = token == tokens - 1;
    if (token % 2 == 1 || last) {
      const std::size_t at = std::size_t(token / 2) * std::size_t(channels) + std::size_t(channel);
      anchor[at] = std::byte(codes), residual[at] = std::byte(finer);
      codes = finer = 0;
    }
    if (of.job.reading == PaperReading::k127 && (token % 8 == 7 || last)) {
      fifth[std::size_t(token / 8) * std::size_t(channels) + std::size_t(channel)] = std::byte(fifths);
      fifths = 0;
    }
  }
}

LYNX_KERNEL void PaperEncodeThread(const PaperEncodeJob& job, int page_index, int channel) {
  const DeviceTarget& page = job.pages[page_index];
  const PageDims& dims = page.dims;
  if (channel >= dims.channels) return;
  PaperChannel of{job, dims, UnitOf({}, dims.head_dim(), channel)};
  float least = 0.0f, greatest = 0.0f;
  for (int token = 0; token < dims.tokens; ++token) {
    float value = 0.0f;
    if (!LoadUnit(job.cache, dims, token, of.unit, &value)) {
      *page.exact = 1;
      return;
    }
    if (token == 0 || value < least) least = value + 0.0f;
    if (token == 0 || value > greatest) greatest = value + 0.0f;
  }
  const std::uint16_t gamma_min = F16Down(least);
  of.base = F16ToFloat(gamma_min);
  const std::uint16_t gamma_scale = F16Up(greatest - of.base);
  of.divisor = PaperDivisor(F16ToFloat(gamma_scale));
  std::byte* to = page.payloads[0];
  StoreLittle(gamma_min, to + 2 * channel);
  StoreLittle(gamma_scale, to + 2 * (dims.channels + channel));
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    PaperEncodeChunk(of, chunk * kChunkTokens, dims.ChunkTokens(chunk),
                     to + PaperChunkOffset(job.reading, dims.channels, chunk),
                     page.payloads[1] + PaperResidualOffset(dims.channels, chunk));
  }
}

}  // namespace lynx
