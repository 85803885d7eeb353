// `lynx` decoding on a GPU: one warp per page, its 32 lanes those of the coder. Values are those of LynxCodec. A page
// is checked before its first element is written, so the host needs to check only its header and checksum.
//
// A warp runs steps in which every lane does its part and then waits for the others:
//   ForEach(f)  f(lane) in every lane
//   Ballot(f)   the lanes in which f(lane) is true, as bits
//   Lanes<T>    a T per lane
#pragma once

#include <bit>
#include <span>

#include "codec/bit_io.h"
#include "codec/lynx_payload.h"
#include "codec/lynx_reference.h"
#include "codec/paged_cache.h"
#include "codec/rans.h"

namespace lynx {

struct LynxKernelTables {
  LynxTables tables = LynxTables::Get();
  float centre_steps[kLynxGreatestStep - kLynxLeastStep + 1];  // a 32nd of each step
  float per_cells[kLynxGreatestStep - kLynxLeastStep + 1];     // 16 / step

  LynxKernelTables() {
    for (int step = kLynxLeastStep; step <= kLynxGreatestStep; ++step) {
      centre_steps[step - kLynxLeastStep] = EighthOctave(step - 40);
      per_cells[step - kLynxLeastStep] = EighthOctave(32 - step);
    }
  }
};

struct LynxDecodeJob {
  const DevicePage* pages = nullptr;  // all of one layer and kind
  PagedCache cache;
  RopeView rope;
  const LynxKernelTables* tables = nullptr;
  int stream_bits = 0;          // of the residual in each later stream
  std::byte* work = nullptr;    // work_bytes per page, aligned to 16
  std::size_t work_bytes = 0;   // at least LynxWorkBytes of the largest page
  std::uint32_t* ok = nullptr;  // per page: 1, or 0 for a page that is corrupt and was not written
};

// What a warp keeps in memory.
struct LynxWarpWork {
  bool ok = false;
  Parts parts;
  int mean_order = 0;
  std::size_t states_at = 0;  // in stream 0
  std::size_t words = 0;      // taken by the coder
  std::size_t low_at = 0;     // byte of the open bits where low bits begin
  std::byte carried[2 * kRansLanes] = {};
};
// The same per channel and element, in rows behind it.
struct LynxWarpRows {
  std::int32_t* centres;  // [token][channel]; of an outermost symbol at first what lies above it
  std::int32_t* means;
  std::uint32_t* low_first;  // bits of low bits before a channel's
  std::uint32_t* outermost;  // [channel][kPageTokens / 32]: tokens with outermost symbols as bits
  std::int16_t* steps;
  std::uint8_t* classes;
  std::uint8_t* symbols;  // [token][channel]
};
inline constexpr int kTokenWords = kPageTokens / 32;
constexpr std::size_t LynxWorkBytes(int tokens, int channels) {
  const std::size_t bytes = sizeof(LynxWarpWork) + std::size_t(channels) * (4 + 4 + 4 * kTokenWords + 2 + 1) +
                            std::size_t(tokens) * std::size_t(channels) * 5;
  return (bytes + 15) / 16 * 16;
}
LYNX_KERNEL LynxWarpRows RowsOf(LynxWarpWork* work, const PageDims& dims) {
  LynxWarpRows rows;
  const std::size_t channels = std::size_t(dims.channels);
  rows.centres = reinterpret_cast<std::int32_t*>(work + 1);
  rows.means = rows.centres + dims.elements();
  rows.low_first = reinterpret_cast<std::uint32_t*>(rows.means + channels);
  rows.outermost = rows.low_first + channels;
  rows.steps = reinterpret_cast<std::int16_t*>(rows.outermost + channels * kTokenWords);
  rows.classes = reinterpret_cast<std::uint8_t*>(rows.steps + channels);
  rows.symbols = rows.classes + channels;
  return rows;
}

// Stream 0 up to the coder's states.
LYNX_KERNEL bool LynxReadFields(const DevicePage& page, int stream_bits, const LynxWarpRows& rows, LynxWarpWork* work) {
  const PageDims& dims = page.dims;
  const std::byte* from = page.payloads[0];
  Parts& parts = work->parts;
  parts = PartsOf(dims);
  std::size_t at = LynxHeadBytes(dims) + SinkBytes(dims, parts.sinks);
  if (page.bytes[0] < at) return false;
  parts.recent = int(from[0]);
  if (parts.coded == 0 || parts.recent > parts.coded || int(from[3]) - 1 > kLynxMaxOrder) return false;
  if (!SinksWithin(from + LynxHeadBytes(dims), std::size_t(parts.sinks) * std::size_t(dims.channels),
                   dims.element_type)) {
    return false;
  }
  at += RowBytes(parts.recent, dims.channels, kLynxResidualBits);
  if (page.bytes[0] < at) return false;
  BitReader bits(std::span(from + at, page.bytes[0] - at));
  if (!LynxGetClasses(from, dims.channels, &bits, rows.classes) ||
      !LynxGetSteps(from, dims.channels, dims.head_dim(), &bits, rows.steps)) {
    return false;
  }
  work->mean_order = int(from[2]) >> 4;
  work->states_at = at + bits.bytes();
  for (int stream = 1; stream < page.streams; ++stream) {
    if (page.bytes[stream] != RowBytes(parts.plain(), dims.channels, stream_bits)) return false;
  }
  return page.bytes[0] - work->states_at >= 4 * std::size_t(RansLanesOf(dims.channels));
}

// Symbols, and which are outermost; false: corrupt.
template <class Warp>
LYNX_KERNEL bool LynxTakeSymbols(const Warp& warp, const DevicePage& page, const LynxTables& tables,
                                 const LynxWarpRows& rows, LynxWarpWork* work) {
  const int channels = page.dims.channels, lanes = RansLanesOf(channels), tokens = work->parts.coded;
  const std::byte* states_from = page.payloads[0] + work->states_at;
  const std::byte* words = states_from + 4 * lanes;
  const std::size_t words_left = std::size_t(page.payloads[0] + page.bytes[0] - words) / 2;
  std::size_t taken = 0;
  typename Warp::template Lanes<std::uint32_t> states{}, outermost{};
  warp.ForEach([&](int lane) { states[lane] = lane < lanes ? LoadLittle<std::uint32_t>(states_from + 4 * lane) : 0; });
  if (warp.Ballot([&](int lane) { return lane < lanes && states[lane] < kRansLeastState; }) != 0) return false;
  for (int first = 0; first < channels; first += kRansLanes) {
    const int width = channels - first < kRansLanes ? channels - first : kRansLanes;
    for (int token = 0; token < tokens; ++token) {
      // The lanes that take a word, in their order.
      const std::uint32_t takers = warp.Ballot([&](int lane) {
        if (lane >= width) return false;
        const int c = first + lane;
        const std::uint8_t symbol = RansTake(tables[LynxTableOf(rows.classes[c])], &states[lane]);
        rows.symbols[std::size_t(token) * std::size_t(channels) + std::size_t(c)] = symbol;
        outermost[lane] |= std::uint32_t(LynxIsOutermost(symbol)) << (token % 32);
        if (token % 32 == 31 || token == tokens - 1) {
          rows.outermost[c * kTokenWords + token / 32] = outermost[lane];
          outermost[lane] = 0;
        }
        return states[lane] < kRansLeastState;
      });
      const auto count = std::size_t(std::popcount(takers));
      if (count > words_left - taken) return false;
      warp.ForEach([&](int lane) {
        if ((takers >> lane & 1u) == 0) return;
        const auto before = std::size_t(std::popcount(takers & ((1u << lane) - 1u)));
        states[lane] = RansRefill(states[lane], LoadLittle<std::uint16_t>(words + 2 * (taken + before)));
      });
      taken += count;
    }
  }
  if (warp.Ballot([&](int lane) { return lane < lanes && states[lane] >> 16 != 1; }) != 0) return false;
  warp.ForEach([&](int lane) {
    StoreLittle(std::uint16_t(states[lane]), work->carried + 2 * lane);
    if (lane == 0) work->words = taken;
  });
  return true;
}

// What follows the coder's words; its first bytes came with the states.
struct LynxOpenBits {
  std::span<const std::byte> first, second;
  LYNX_KERNEL std::size_t size() const { return first.size() + second.size(); }
  LYNX_KERNEL std::uint32_t Byte(std::size_t at) const {
    return std::uint32_t(at < first.size() ? first[at] : second[at - first.size()]);
  }
  // `count` <= 24 bits that are there.
  LYNX_KERNEL std::uint32_t Get(std::size_t bit, int count) const {
    std::uint32_t bits = 0;
    for (std::size_t at = bit / 8, up = 0; 8 * at < bit + std::size_t(count); ++at, up += 8) bits |= Byte(at) << up;
    return bits >> (bit % 8) & ((1u << count) - 1u);
  }
};
LYNX_KERNEL LynxOpenBits OpenBitsOf(const DevicePage& page, const LynxWarpWork& work) {
  const std::size_t lanes = std::size_t(RansLanesOf(page.dims.channels));
  const std::size_t at = work.states_at + 4 * lanes + 2 * work.words;
  return {{work.carried, 2 * lanes}, {page.payloads[0] + at, page.bytes[0] - at}};
}

// Means and what lies above the outermost symbols: one code behind the other, for one lane.
LYNX_KERNEL bool LynxReadMeans(const DevicePage& page, const LynxWarpRows& rows, LynxWarpWork* work) {
  const int channels = page.dims.channels;
  const LynxOpenBits open = OpenBitsOf(page, *work);
  BitReader bits(open.first, open.second);
  std::uint32_t low_bits = 0;
  for (int c = 0; c < channels; ++c) {
    const std::int32_t mean = UnZigZag(bits.GetGolomb(work->mean_order));
    if (mean > kLynxGreatestLevel || mean < -kLynxGreatestLevel) return false;
    rows.means[c] = mean;
    const int shift = LynxShift(rows.classes[c]);
    rows.low_first[c] = low_bits;
    low_bits += std::uint32_t(shift) * std::uint32_t(work->parts.coded);
    const std::uint32_t bound = std::uint32_t(kLynxGreatestLevel >> shift) - kLynxOutermost;
    for (int word = 0; 32 * word < work->parts.coded; ++word) {
      for (std::uint32_t left = rows.outermost[c * kTokenWords + word]; left != 0; left &= left - 1) {
        const std::uint32_t above = bits.GetGolomb(kLynxOpenOrder);
        if (above > bound) return false;
        const int token = 32 * word + std::countr_zero(left);
        rows.centres[std::size_t(token) * std::size_t(channels) + std::size_t(c)] = std::int32_t(above << (5 + shift));
      }
    }
  }
  bits.SkipPadding();
  work->low_at = bits.bytes();
  const std::size_t end = work->low_at + (low_bits + 7) / 8;
  return bits.ok() && (end > open.first.size() ? end : open.first.size()) == open.size();
}

// The centres of a channel's levels.
LYNX_KERNEL void LynxReadCentres(const DevicePage& page, const LynxWarpRows& rows, const LynxWarpWork& work, int c) {
  const LynxOpenBits open = OpenBitsOf(page, work);
  const int shift = LynxShift(rows.classes[c]);
  std::size_t bit = 8 * work.low_at + rows.low_first[c];
  std::size_t at = std::size_t(c);
  for (int token = 0; token < work.parts.coded; ++token, at += std::size_t(page.dims.channels)) {
    const std::uint8_t symbol = rows.symbols[at];
    std::int32_t centre = LynxCoarseCentre(symbol, shift, rows.means[c]);
    if (LynxIsOutermost(symbol)) centre += symbol == 0 ? -rows.centres[at] : rows.centres[at];
    if (shift > 0) centre += std::int32_t(open.Get(bit, shift)) << 5;
    bit += std::size_t(shift);
    rows.centres[at] = centre;
  }
}

// A coded token's value before it is turned.
LYNX_KERNEL float LynxDecodedValue(const LynxDecodeJob& job, const DevicePage& page, const LynxWarpRows& rows,
                                   const Parts& parts, int coded, int c) {
  const PageDims& dims = page.dims;
  int known = 0;
  std::int32_t fine = 0;
  if (coded >= parts.plain()) {
    const std::byte* recent = page.payloads[0] + LynxHeadBytes(dims) + SinkBytes(dims, parts.sinks);
    known = kLynxResidualBits;
    fine = LynxFineCentre(GetRow(recent, dims.channels, known, coded - parts.plain(), c), known);
  } else {
    for (int stream = 1; stream < page.streams; ++stream) {
      known += job.stream_bits;
      fine += LynxFineCentre(GetRow(page.payloads[stream], dims.channels, job.stream_bits, coded, c), known);
    }
  }
  const std::int32_t centre = rows.centres[std::size_t(coded) * std::size_t(dims.channels) + std::size_t(c)];
  return LynxValueOf(centre + fine + LynxHalfCell(known), job.tables->centre_steps[rows.steps[c] - kLynxLeastStep]);
}

LYNX_KERNEL void LynxWriteUnit(const LynxDecodeJob& job, const DevicePage& page, const LynxWarpRows& rows,
                               const Parts& parts, int token, const ChannelUnit& unit) {
  const PageDims& dims = page.dims;
  if (token < parts.sinks) {
    for (int i = 0; i < unit.count; ++i) {
      *CacheAt(job.cache, dims, token, unit, i) =
          DenseBf16(page.payloads[0] + LynxHeadBytes(dims), dims, token, unit.in_page[i], false);
    }
    return;
  }
  float values[2] = {};
  for (int i = 0; i < unit.count; ++i) {
    values[i] = LynxDecodedValue(job, page, rows, parts, token - parts.sinks, unit.in_page[i]);
  }
  if (unit.count == 2) job.rope.Turn(&values[0], &values[1], token, unit.pair, false);
  for (int i = 0; i < unit.count; ++i) *CacheAt(job.cache, dims, token, unit, i) = FloatToBf16(values[i]);
}

template <class Warp>
LYNX_KERNEL bool LynxReadPage(const Warp& warp, const LynxDecodeJob& job, const DevicePage& page,
                              const LynxWarpRows& rows, LynxWarpWork* work) {
  warp.ForEach([&](int lane) {
    if (lane == 0) work->ok = LynxReadFields(page, job.stream_bits, rows, work);
  });
  if (!work->ok || !LynxTakeSymbols(warp, page, job.tables->tables, rows, work)) return false;
  warp.ForEach([&](int lane) {
    if (lane == 0) work->ok = LynxReadMeans(page, rows, work);
  });
  if (!work->ok) return false;
  warp.ForEach([&](int lane) {
    for (int c = lane; c < page.dims.channels; c += kRansLanes) LynxReadCentres(page, rows, *work, c);
  });
  return true;
}

template <class Warp>
LYNX_KERNEL void LynxDecodeWarp(const Warp& warp, const LynxDecodeJob& job, int page_index) {
  const DevicePage& page = job.pages[page_index];
  const PageDims& dims = page.dims;
  auto* work = reinterpret_cast<LynxWarpWork*>(job.work + std::size_t(page_index) * job.work_bytes);
  const LynxWarpRows rows = RowsOf(work, dims);
  const bool ok = page.exact || LynxReadPage(warp, job, page, rows, work);
  warp.ForEach([&](int lane) {
    if (lane == 0) job.ok[page_index] = ok ? 1 : 0;
    if (!ok) return;
    const int units = UnitsOfHead(job.rope, dims.head_dim()) * dims.address.head_count;
    for (int i = lane; i < units; i += kRansLanes) {
      const ChannelUnit unit = UnitOf(job.rope, dims.head_dim(), i);
      if (page.exact) {
        CopyExact(page, job.cache, unit, 0, dims.tokens);
        continue;
      }
      for (int token = 0; token < dims.tokens; ++token) LynxWriteUnit(job, page, rows, work->parts, token, unit);
    }
  });
}

}  // namespace lynx
