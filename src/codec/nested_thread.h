// `nested` on a GPU: one thread per channel (or pair of channels that RoPE turns together) of a chunk decodes, one per
// channel of a page encodes. Bytes and values are those of NestedCodec.
#pragma once

#include "codec/nested_payload.h"
#include "codec/paged_cache.h"

namespace lynx {

struct NestedDecodeJob {
  const DevicePage* pages = nullptr;  // all of one layer and kind
  PagedCache cache;
  RopeView rope;
  int anchor_bits = 0;
};

// The grid of a channel in a chunk, and where its codes are.
struct NestedChannel {
  float low = 0.0f;
  float cell = 0.0f;
  LYNX_KERNEL float Value(const std::byte* anchor, const std::byte* residual, int tokens, int channels, int anchor_bits,
                          int token, int channel) const {
    const int rest = kNestedBits - anchor_bits;
    int n = GetCode(anchor, tokens, channels, anchor_bits, token, channel) << rest;
    if (residual != nullptr) n |= GetCode(residual, tokens, channels, rest, token, channel);
    return NestedCentre(n, NestedFirst(low, NestedHalf(residual != nullptr ? 0 : rest), cell), cell);
  }
};

LYNX_KERNEL void NestedDecodeThread(const NestedDecodeJob& job, int page_index, int chunk, int unit_index) {
  const DevicePage& page = job.pages[page_index];
  const PageDims& dims = page.dims;
  const int head_dim = dims.head_dim();
  if (chunk >= dims.chunks() || unit_index >= UnitsOfHead(job.rope, head_dim) * dims.address.head_count) return;
  const ChannelUnit unit = UnitOf(job.rope, head_dim, unit_index);
  const int begin = chunk * kChunkTokens;
  if (page.exact) return CopyExact(page, job.cache, unit, begin, begin + dims.ChunkTokens(chunk));

  const std::byte* from = page.payloads[0];
  Parts parts = PartsOf(dims);
  parts.recent = LoadLittle<std::uint16_t>(from);
  const NestedPlace place = NestedPlaceOf(dims, parts, job.anchor_bits, chunk);
  const std::byte* page_scales = from + kNestedFixedBytes + SinkBytes(dims, parts.sinks);
  NestedChannel channels[2];
  for (int i = 0; i < unit.count; ++i) {
    const int c = unit.in_page[i];
    const float base = LoadF16(page_scales + 2 * c), step = LoadF16(page_scales + 2 * (dims.channels + c));
    channels[i].low = NestedLow(base, step, std::uint8_t(from[place.scales + std::size_t(c)]));
    channels[i].cell = NestedCell(step, std::uint8_t(from[place.scales + std::size_t(dims.channels + c)]));
  }
  for (int token = begin; token < place.first; ++token) {
    for (int i = 0; i < unit.count; ++i) {
      *CacheAt(job.cache, dims, token, unit, i) =
          DenseBf16(from + kNestedFixedBytes, dims, token, unit.in_page[i], false);
    }
  }
  for (int token = place.first; token < place.end; ++token) {
    const bool plain = token < place.cut;
    const std::byte* anchor = from + (plain ? place.plain_anchor : place.recent_anchor);
    const std::byte* residual = from + place.recent_residual;
    if (plain) residual = page.streams > 1 ? page.payloads[1] + place.plain_residual : nullptr;
    float values[2] = {};
    for (int i = 0; i < unit.count; ++i) {
      values[i] = channels[i].Value(anchor, residual, plain ? place.plain() : place.recent(), dims.channels,
                                    job.anchor_bits, token - (plain ? place.first : place.cut), unit.in_page[i]);
    }
    if (unit.count == 2) job.rope.Turn(&values[0], &values[1], token, unit.pair, false);
    for (int i = 0; i < unit.count; ++i) *CacheAt(job.cache, dims, token, unit, i) = FloatToBf16(values[i]);
  }
}

struct NestedEncodeJob {
  const DeviceTarget* pages = nullptr;
  PagedCache cache;
  RopeView rope;
  int anchor_bits = 0;
  int recent = 0;
};

inline constexpr int kPageChunks = kPageTokens / kChunkTokens;
struct NestedRange {
  float least[kPageChunks] = {}, greatest[kPageChunks] = {};
};

// Values of a coded token, turned back. False: one can only travel exactly.
LYNX_KERNEL bool NestedLoad(const NestedEncodeJob& job, const PageDims& dims, int token, const ChannelUnit& unit,
                            float* values) {
  if (!LoadUnit(job.cache, dims, token, unit, values)) return false;
  if (unit.count == 2) job.rope.Turn(&values[0], &values[1], token, unit.pair, true);
  return true;
}

// Per chunk and channel; false as above.
LYNX_KERNEL bool NestedRanges(const NestedEncodeJob& job, const PageDims& dims, const Parts& parts,
                              const ChannelUnit& unit, NestedRange* ranges) {
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    const NestedPlace place = NestedPlaceOf(dims, parts, job.anchor_bits, chunk);
    for (int token = place.first; token < place.end; ++token) {
      float values[2] = {};
      if (!NestedLoad(job, dims, token, unit, values)) return false;
      for (int i = 0; i < unit.count; ++i) {
        float &least = ranges[i].least[chunk], &greatest = ranges[i].greatest[chunk];
        if (token == place.first || values[i] < least) least = values[i] + 0.0f;
        if (token == place.first || values[i] > greatest) greatest = values[i] + 0.0f;
      }
    }
  }
  return true;
}

// Codes of up to eight tokens of a channel, from a token on that is a multiple of eight, into code rows.
LYNX_KERNEL void PutCodes(const std::uint8_t* codes, int drop, int count, std::byte* rows, int tokens, int channels,
                          int width, int token, int channel) {
  int left = width;
  for (int piece = kGreatestPiece; piece > 0; piece /= 2) {
    if ((width & piece) == 0) continue;
    left -= piece;
    const int per_byte = 8 / piece;
    for (int first = 0; first < count; first += per_byte) {
      int bits = 0;
      for (int i = 0; i < per_byte && first + i < count; ++i) {
        bits |= (codes[first + i] >> (drop + left) & ((1 << piece) - 1)) << (i * piece);
      }
      rows[std::size_t((token + first) / per_byte) * std::size_t(channels) + std::size_t(channel)] = std::byte(bits);
    }
    rows += RowBytes(tokens, channels, piece);
  }
}

// Tokens first … end - 1 of a chunk.
LYNX_KERNEL void NestedQuantizeUnit(const NestedEncodeJob& job, const PageDims& dims, const ChannelUnit& unit,
                                    const float* centres, const float* inverse_cells, int first, int end,
                                    std::byte* anchor, std::byte* residual) {
  const int rest = kNestedBits - job.anchor_bits, tokens = end - first;
  for (int token = 0; token < tokens; token += 8) {
    const int count = tokens - token < 8 ? tokens - token : 8;
    std::uint8_t codes[2][8] = {};
    for (int k = 0; k < count; ++k) {
      float values[2] = {};
      NestedLoad(job, dims, first + token + k, unit, values);
      for (int i = 0; i < unit.count; ++i) {
        codes[i][k] = std::uint8_t(NestedQuantize(values[i], centres[i], inverse_cells[i]));
      }
    }
    for (int i = 0; i < unit.count; ++i) {
      PutCodes(codes[i], rest, count, anchor, tokens, dims.channels, job.anchor_bits, token, unit.in_page[i]);
      PutCodes(codes[i], 0, count, residual, tokens, dims.channels, rest, token, unit.in_page[i]);
    }
  }
}

LYNX_KERNEL void NestedEncodeThread(const NestedEncodeJob& job, int page_index, int unit_index) {
  const DeviceTarget& page = job.pages[page_index];
  const PageDims& dims = page.dims;
  const int head_dim = dims.head_dim();
  if (unit_index >= UnitsOfHead(job.rope, head_dim) * dims.address.head_count) return;
  const ChannelUnit unit = UnitOf(job.rope, head_dim, unit_index);
  Parts parts = PartsOf(dims);
  parts.recent = RecentOf(dims, parts.coded, job.recent);
  std::byte* to = page.payloads[0];
  if (unit_index == 0) StoreLittle(std::uint16_t(parts.recent), to);
  bool within = parts.coded > 0;
  for (int token = 0; token < parts.sinks; ++token) {
    float values[2] = {};
    within = LoadUnit(job.cache, dims, token, unit, values) && within;
    for (int i = 0; i < unit.count; ++i) {
      const int at = token * dims.channels + unit.in_page[i];
      StoreLittle(FloatToBf16(values[i]), to + kNestedFixedBytes + 2 * std::size_t(at));
    }
  }
  NestedRange ranges[2];
  if (!within || !NestedRanges(job, dims, parts, unit, ranges)) {
    *page.exact = 1;
    return;
  }
  float bases[2] = {}, units[2] = {};
  std::byte* page_scales = to + kNestedFixedBytes + SinkBytes(dims, parts.sinks);
  for (int i = 0; i < unit.count; ++i) {
    float least = ranges[i].least[0], greatest = ranges[i].greatest[0];
    for (int chunk = 1; chunk < dims.chunks(); ++chunk) {
      least = ranges[i].least[chunk] < least ? ranges[i].least[chunk] : least;
      greatest = ranges[i].greatest[chunk] > greatest ? ranges[i].greatest[chunk] : greatest;
    }
    const NestedPageScale scale = NestedPageScaleOf(least, greatest);
    StoreLittle(scale.base, page_scales + 2 * unit.in_page[i]);
    StoreLittle(scale.unit, page_scales + 2 * (dims.channels + unit.in_page[i]));
    bases[i] = F16ToFloat(scale.base), units[i] = F16ToFloat(scale.unit);
  }
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    const NestedPlace place = NestedPlaceOf(dims, parts, job.anchor_bits, chunk);
    float centres[2] = {}, inverse_cells[2] = {};
    for (int i = 0; i < unit.count; ++i) {
      const NestedEncoderGrid grid =
          NestedEncoderGridOf(bases[i], units[i], ranges[i].least[chunk], ranges[i].greatest[chunk]);
      to[place.scales + std::size_t(unit.in_page[i])] = std::byte(grid.scale.offset);
      to[place.scales + std::size_t(dims.channels + unit.in_page[i])] = std::byte(grid.scale.width);
      centres[i] = grid.first;
      inverse_cells[i] = grid.inverse_cell;
    }
    NestedQuantizeUnit(job, dims, unit, centres, inverse_cells, place.first, place.cut, to + place.plain_anchor,
                       page.payloads[1] + place.plain_residual);
    NestedQuantizeUnit(job, dims, unit, centres, inverse_cells, place.cut, place.end, to + place.recent_anchor,
                       to + place.recent_residual);
  }
}

}  // namespace lynx
