// `lynx` encoding on a GPU: one warp (lynx_warp.h) per page. Bytes are those of LynxCodec, but for the exact stream,
// whose coder has four lanes only: pages with exact=1 are for the host.
#pragma once

#include "codec/lynx_warp.h"

namespace lynx {

struct LynxEncodeJob {
  const DeviceTarget* pages = nullptr;  // all of one layer and kind
  PagedCache cache;
  RopeView rope;
  const LynxKernelTables* tables = nullptr;
  int stream_bits = 0;         // of the residual in each later stream
  int recent = 0;              // as the codec's parameter
  std::byte* work = nullptr;   // work_bytes per page, aligned to 16
  std::size_t work_bytes = 0;  // at least LynxEncodeWorkBytes of the largest page
};

// What a warp keeps in memory.
struct LynxEncodeWork {
  Parts parts;
  bool ok = false;
  std::size_t recent_at = 0, classes_at = 0, states_at = 0;  // in payload 0
  std::size_t low_at = 0;                                    // byte of the open bits where low bits begin
  std::size_t open_bytes = 0;
};
// The same per channel and coded element, in rows behind it.
struct LynxEncodeRows {
  float* values;         // [token][channel], before RoPE
  std::int32_t* nested;  // cells, then n
  std::int32_t* means;
  std::int32_t* classes;
  float* magnitudes;
  std::uint32_t* low_first;  // bits of low bits before a channel's, and of all channels
  std::uint32_t* outermost;  // [channel][kPageTokens / 32]: tokens with outermost symbols as bits
  std::int16_t* steps;
  std::int16_t* eighths;  // octaves of the spreads
  std::uint16_t* words;   // ends with the last one
  std::uint8_t* symbols;
  std::byte* open;  // open bits, the lanes' first bytes included
};
// More open bits than these make the page too long.
constexpr std::size_t LynxOpenRoom(std::size_t elements) { return kLynxMostBytes * elements + 2 * kRansLanes; }
constexpr std::size_t LynxEncodeWorkBytes(int tokens, int channels) {
  const std::size_t elements = std::size_t(tokens) * std::size_t(channels);
  const std::size_t bytes = sizeof(LynxEncodeWork) + 4 + std::size_t(channels) * (4 * 4 + 4 * kTokenWords + 2 * 2) +
                            elements * (4 + 4 + 2 + 1) + LynxOpenRoom(elements);
  return (bytes + 15) / 16 * 16;
}
LYNX_KERNEL LynxEncodeRows RowsOf(LynxEncodeWork* work, const PageDims& dims) {
  LynxEncodeRows rows;
  const std::size_t channels = std::size_t(dims.channels), elements = dims.elements();
  rows.values = reinterpret_cast<float*>(work + 1);
  rows.nested = reinterpret_cast<std::int32_t*>(rows.values + elements);
  rows.means = rows.nested + elements;
  rows.classes = rows.means + channels;
  rows.magnitudes = reinterpret_cast<float*>(rows.classes + channels);
  rows.low_first = reinterpret_cast<std::uint32_t*>(rows.magnitudes + channels);
  rows.outermost = rows.low_first + channels + 1;
  rows.steps = reinterpret_cast<std::int16_t*>(rows.outermost + channels * kTokenWords);
  rows.eighths = rows.steps + channels;
  rows.words = reinterpret_cast<std::uint16_t*>(rows.eighths + channels);
  rows.symbols = reinterpret_cast<std::uint8_t*>(rows.words + elements);
  rows.open = reinterpret_cast<std::byte*>(rows.symbols + elements);
  return rows;
}

// The places of what has a known length; false: they alone are too long.
LYNX_KERNEL bool LynxPlaceFields(const DeviceTarget& page, int recent, LynxEncodeWork* work) {
  const PageDims& dims = page.dims;
  Parts& parts = work->parts;
  parts = PartsOf(dims);
  if (parts.coded == 0) return false;
  parts.recent = RecentOf(dims, parts.coded, recent);
  work->recent_at = LynxHeadBytes(dims) + SinkBytes(dims, parts.sinks);
  work->classes_at = work->recent_at + RowBytes(parts.recent, dims.channels, kLynxResidualBits);
  return work->classes_at <= kLynxMostBytes * dims.elements();
}

// Sinks to the payload; coded values, turned back, to rows. False: one can only travel exactly.
LYNX_KERNEL bool LynxLoadUnit(const LynxEncodeJob& job, const DeviceTarget& page, const Parts& parts,
                              const ChannelUnit& unit, float* rows) {
  const PageDims& dims = page.dims;
  bool within = true;
  for (int token = 0; token < dims.tokens; ++token) {
    float values[2] = {};
    within = LoadUnit(job.cache, dims, token, unit, values) && within;
    const bool sink = token < parts.sinks;
    if (!sink && unit.count == 2) job.rope.Turn(&values[0], &values[1], token, unit.pair, true);
    const std::size_t row = std::size_t(sink ? token : token - parts.sinks) * std::size_t(dims.channels);
    for (int i = 0; i < unit.count; ++i) {
      const std::size_t at = row + std::size_t(unit.in_page[i]);
      if (sink) {
        StoreLittle(FloatToBf16(values[i]), page.payloads[0] + LynxHeadBytes(dims) + 2 * at);
      } else {
        rows[at] = values[i];
      }
    }
  }
  return within;
}

// What the choice of steps needs of a channel.
LYNX_KERNEL void LynxMeasureChannel(const DeviceTarget& page, int tokens, const LynxEncodeRows& rows, int c) {
  const std::size_t channels = std::size_t(page.dims.channels);
  float greatest = 0.0f;
  for (std::size_t token = 0; token < std::size_t(tokens); ++token) {
    const float value = rows.values[token * channels + std::size_t(c)], magnitude = value < 0.0f ? -value : value;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  rows.magnitudes[c] = greatest;
  if (page.rate.steps == nullptr) {
    rows.eighths[c] = std::int16_t(EighthOctavesOf(LynxSpreadOf(rows.values + c, tokens, channels)));
  }
}

// A channel's cells, mean, class, n and symbols.
LYNX_KERNEL void LynxSplitChannel(const LynxKernelTables& tables, int tokens, int channel_count,
                                  const LynxEncodeRows& rows, int c) {
  const std::size_t channels = std::size_t(channel_count);
  std::int32_t* nested = rows.nested + c;
  const float per_cell = tables.per_cells[rows.steps[c] - kLynxLeastStep];
  for (std::size_t token = 0; token < std::size_t(tokens); ++token) {
    nested[token * channels] = LynxCellOf(rows.values[token * channels + std::size_t(c)], per_cell);
  }
  const std::int32_t mean = LynxMeanOf(LynxCellSum(nested, tokens, channels), tokens);
  rows.means[c] = mean;
  rows.classes[c] = LynxTables::ClassOf(LynxDistanceSum(nested, tokens, channels, mean), tokens);
  const int shift = LynxShift(rows.classes[c]);
  std::uint32_t outermost = 0;
  for (int token = 0; token < tokens; ++token) {
    const std::size_t at = std::size_t(token) * channels;
    std::uint8_t symbol = 0, residual = 0;
    LynxSplit(&nested[at], mean, shift, &symbol, &residual);
    rows.symbols[at + std::size_t(c)] = symbol;
    outermost |= std::uint32_t(LynxIsOutermost(symbol)) << (token % 32);
    if (token % 32 == 31 || token == tokens - 1) {
      rows.outermost[c * kTokenWords + token / 32] = outermost;
      outermost = 0;
    }
  }
}

// PackRows for one channel: bits `drop` … drop + width - 1 of n, of the coded tokens first … end - 1.
LYNX_KERNEL void LynxPackChannel(const LynxEncodeRows& rows, int first, int end, int channels, int width, int drop,
                                 int c, std::byte* to) {
  const int per_byte = 8 / width, mask = (1 << width) - 1;
  to += c;
  for (int token = first; token < end; token += per_byte, to += channels) {
    int bits = 0;
    for (int i = 0; i < per_byte && token + i < end; ++i) {
      const std::int32_t n = rows.nested[std::size_t(token + i) * std::size_t(channels) + std::size_t(c)];
      bits |= (n >> drop & mask) << (i * width);
    }
    *to = std::byte(bits);
  }
}
LYNX_KERNEL void LynxPackResiduals(const LynxEncodeJob& job, const DeviceTarget& page, const LynxEncodeWork& work,
                                   const LynxEncodeRows& rows, int c) {
  const Parts& parts = work.parts;
  const int channels = page.dims.channels;
  LynxPackChannel(rows, parts.plain(), parts.coded, channels, kLynxResidualBits, 0, c,
                  page.payloads[0] + work.recent_at);
  for (int stream = 1; stream * job.stream_bits <= kLynxResidualBits; ++stream) {
    LynxPackChannel(rows, 0, parts.plain(), channels, job.stream_bits, kLynxResidualBits - stream * job.stream_bits, c,
                    page.payloads[stream]);
  }
}

// The fields before the coder's states, and open bits but for low bits: one code behind the other, for one lane.
// False: too long.
LYNX_KERNEL bool LynxPutFields(const DeviceTarget& page, const LynxEncodeRows& rows, LynxEncodeWork* work) {
  const PageDims& dims = page.dims;
  const int channels = dims.channels;
  std::byte* to = page.payloads[0];
  to[0] = std::byte(work->parts.recent);
  BitWriter bits(std::span(to + work->classes_at, kLynxMostBytes * dims.elements() - work->classes_at));
  LynxPutClasses(rows.classes, rows.steps, channels, dims.head_dim(), to, &bits);
  if (!bits.ok()) return false;
  work->states_at = work->classes_at + bits.bytes();

  BitWriter open(std::span(rows.open, LynxOpenRoom(dims.elements())));
  const int order = LynxPutMeanOrder(rows.means, channels, to);
  std::uint32_t low_bits = 0;
  for (int c = 0; c < channels; ++c) {
    const int shift = LynxShift(rows.classes[c]);
    rows.low_first[c] = low_bits;
    low_bits += std::uint32_t(shift) * std::uint32_t(work->parts.coded);
    open.PutGolomb(ZigZag(rows.means[c]), order);
    for (int word = 0; 32 * word < work->parts.coded; ++word) {
      for (std::uint32_t left = rows.outermost[c * kTokenWords + word]; left != 0; left &= left - 1) {
        const std::size_t row = std::size_t(32 * word + std::countr_zero(left)) * std::size_t(channels);
        LynxPutOpen(rows.nested[row + std::size_t(c)] >> kLynxResidualBits, shift, &open);
      }
    }
  }
  rows.low_first[channels] = low_bits;
  open.Finish();
  work->low_at = open.bytes();
  work->open_bytes = open.bytes() + (low_bits + 7) / 8;
  return open.ok() && work->open_bytes <= LynxOpenRoom(dims.elements());
}

// Every 32nd byte of the low bits.
LYNX_KERNEL void LynxPutLowBits(int channels, const LynxEncodeWork& work, const LynxEncodeRows& rows, int lane) {
  int c = 0;
  for (std::size_t at = work.low_at + std::size_t(lane); at < work.open_bytes; at += kRansLanes) {
    std::uint32_t byte = 0;
    const auto first = std::uint32_t(8 * (at - work.low_at));
    for (std::uint32_t bit = first; bit < first + 8 && bit < rows.low_first[channels]; ++bit) {
      while (bit >= rows.low_first[c + 1]) ++c;
      const auto shift = std::uint32_t(LynxShift(rows.classes[c])), in_channel = bit - rows.low_first[c];
      const std::int32_t n = rows.nested[std::size_t(in_channel / shift) * std::size_t(channels) + std::size_t(c)];
      byte |= (LynxLowOf(n >> kLynxResidualBits, int(shift)) >> (in_channel % shift) & 1u) << (bit - first);
    }
    rows.open[at] = std::byte(byte);
  }
}

// Fills rows.words from their end on, in the order of RansEncodeBlock; returns where they begin.
template <class Warp, class States>
LYNX_KERNEL std::size_t LynxPutSymbols(const Warp& warp, const PageDims& dims, int tokens, const LynxTables& tables,
                                       const LynxEncodeRows& rows, States* states) {
  const int channels = dims.channels, lanes = RansLanesOf(channels);
  std::size_t begin = dims.elements();
  warp.ForEach([&](int lane) {
    (*states)[lane] = kRansLeastState;
    if (lane < lanes) (*states)[lane] |= LoadLittle<std::uint16_t>(rows.open + 2 * lane);
  });
  for (int first = (channels - 1) / kRansLanes * kRansLanes; first >= 0; first -= kRansLanes) {
    const int width = channels - first < kRansLanes ? channels - first : kRansLanes;
    for (int token = tokens - 1; token >= 0; --token) {
      const std::uint8_t* symbols = rows.symbols + std::size_t(token) * std::size_t(channels) + first;
      const auto table_of = [&](int lane) -> const LynxTable& {
        return tables[LynxTableOf(rows.classes[first + lane])];
      };
      // The lanes that give a word; words are written from the last lane on, backwards.
      const std::uint32_t givers = warp.Ballot(
          [&](int lane) { return lane < width && RansSpills(table_of(lane), symbols[lane], (*states)[lane]); });
      begin -= std::size_t(std::popcount(givers));
      warp.ForEach([&](int lane) {
        if (lane >= width) return;
        std::uint32_t& state = (*states)[lane];
        if ((givers >> lane & 1u) != 0) {
          const auto before = std::size_t(std::popcount(givers & ((1u << lane) - 1u)));
          rows.words[begin + before] = std::uint16_t(state);
          state >>= 16;
        }
        RansPut(table_of(lane), symbols[lane], &state);
      });
    }
  }
  return begin;
}

// Up to n and symbols; false: the page travels exactly.
template <class Warp>
LYNX_KERNEL bool LynxChooseLevels(const Warp& warp, const LynxEncodeJob& job, const DeviceTarget& page,
                                  const LynxEncodeRows& rows, LynxEncodeWork* work) {
  const PageDims& dims = page.dims;
  const int channels = dims.channels, head_dim = dims.head_dim(), heads = dims.address.head_count;
  warp.ForEach([&](int lane) {
    if (lane == 0) work->ok = LynxPlaceFields(page, job.recent, work);
  });
  if (!work->ok) return false;
  const Parts parts = work->parts;
  typename Warp::template Lanes<bool> within{};
  warp.ForEach([&](int lane) {
    within[lane] = true;
    for (int i = lane; i < UnitsOfHead(job.rope, head_dim) * heads; i += kRansLanes) {
      within[lane] = LynxLoadUnit(job, page, parts, UnitOf(job.rope, head_dim, i), rows.values) && within[lane];
    }
  });
  if (warp.Ballot([&](int lane) { return !within[lane]; }) != 0) return false;
  warp.ForEach([&](int lane) {
    for (int c = lane; c < channels; c += kRansLanes) LynxMeasureChannel(page, parts.coded, rows, c);
  });
  warp.ForEach([&](int lane) {
    for (int head = lane; head < heads; head += kRansLanes) {
      LynxChooseSteps(job.tables->tables, page.rate, rows.magnitudes, rows.eighths, head * head_dim, head_dim,
                      rows.steps);
    }
  });
  warp.ForEach([&](int lane) {
    StoreLittle(std::uint16_t(0), rows.open + 2 * lane);
    for (int c = lane; c < channels; c += kRansLanes) {
      LynxSplitChannel(*job.tables, parts.coded, channels, rows, c);
      LynxPackResiduals(job, page, *work, rows, c);
    }
  });
  return true;
}

// From n and symbols on.
template <class Warp>
LYNX_KERNEL bool LynxPutPage(const Warp& warp, const LynxEncodeJob& job, const DeviceTarget& page,
                             const LynxEncodeRows& rows, LynxEncodeWork* work) {
  const PageDims& dims = page.dims;
  const std::size_t lanes = std::size_t(RansLanesOf(dims.channels));
  warp.ForEach([&](int lane) {
    if (lane == 0) work->ok = LynxPutFields(page, rows, work);
  });
  if (!work->ok) return false;
  warp.ForEach([&](int lane) { LynxPutLowBits(dims.channels, *work, rows, lane); });
  typename Warp::template Lanes<std::uint32_t> states{};
  const std::size_t begin = LynxPutSymbols(warp, dims, work->parts.coded, job.tables->tables, rows, &states);
  const std::size_t words = dims.elements() - begin;
  const std::size_t open_bytes = work->open_bytes > 2 * lanes ? work->open_bytes - 2 * lanes : 0;
  const std::size_t words_at = work->states_at + 4 * lanes, open_at = words_at + 2 * words;
  const std::size_t streams = std::size_t(kLynxResidualBits / job.stream_bits);
  const std::size_t later = streams * RowBytes(work->parts.plain(), dims.channels, job.stream_bits);
  if (open_at + open_bytes + later >= kLynxMostBytes * dims.elements()) return false;
  std::byte* to = page.payloads[0];
  warp.ForEach([&](int lane) {
    if (std::size_t(lane) < lanes) StoreLittle(states[lane], to + work->states_at + 4 * std::size_t(lane));
    for (std::size_t i = std::size_t(lane); i < words; i += kRansLanes) {
      StoreLittle(rows.words[begin + i], to + words_at + 2 * i);
    }
    for (std::size_t i = std::size_t(lane); i < open_bytes; i += kRansLanes) to[open_at + i] = rows.open[2 * lanes + i];
    if (lane == 0) *page.anchor_bytes = std::uint32_t(open_at + open_bytes);
  });
  return true;
}

template <class Warp>
LYNX_KERNEL void LynxEncodeWarp(const Warp& warp, const LynxEncodeJob& job, int page_index) {
  const DeviceTarget& page = job.pages[page_index];
  auto* work = reinterpret_cast<LynxEncodeWork*>(job.work + std::size_t(page_index) * job.work_bytes);
  const LynxEncodeRows rows = RowsOf(work, page.dims);
  const bool ok = LynxChooseLevels(warp, job, page, rows, work) && LynxPutPage(warp, job, page, rows, work);
  warp.ForEach([&](int lane) {
    if (lane == 0 && !ok) *page.exact = 1;
  });
}

}  // namespace lynx
