#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/float16.h"
#include "codec/bit_io.h"
#include "codec/lynx_codec.h"
#include "codec/lynx_exact.h"
#include "codec/lynx_payload.h"
#include "codec/lynx_reference.h"
#include "codec/page_io.h"

namespace lynx {
namespace {

// Appends to a payload; what does not fit makes the page travel exactly.
class Appender {
 public:
  explicit Appender(std::span<std::byte> room) : room_(room) {}
  bool ok() const { return ok_; }
  std::size_t size() const { return size_; }
  // The next `count` bytes; null when they do not fit.
  std::byte* Take(std::size_t count) {
    if (count > room_.size() - size_) ok_ = false;
    if (!ok_) return nullptr;
    std::byte* taken = room_.data() + size_;
    size_ += count;
    return taken;
  }
  std::span<std::byte> rest() const { return room_.subspan(size_); }
  void Skip(std::size_t count) { size_ += count; }
  void Fail() { ok_ = false; }

 private:
  std::span<std::byte> room_;
  std::size_t size_ = 0;
  bool ok_ = true;
};

// What encoding keeps per element and per channel. Counts bytes instead when it gets no scratch.
struct EncodeWork {
  EncodeWork(const PageDims& dims, Scratch* scratch) : scratch_(scratch) {
    const std::size_t count = dims.elements(), channels = std::size_t(dims.channels);
    Take(&rows, count);
    Take(&nested, count);
    Take(&symbols, count);
    Take(&residuals, count);
    Take(&words, count + kRansSlackWords);
    Take(&outermost, count);
    Take(&sorted, count);
    Take(&open, OpenBytes(dims));
    Take(&means, channels);
    Take(&shifts, channels);
    Take(&classes, channels);
    Take(&sums, channels);
    Take(&spreads, channels);
    Take(&magnitudes, channels);
    Take(&per_cell, channels);
    Take(&steps, channels);
    Take(&eighths, channels);
    Take(&tables, channels);
    Take(&first_of, channels + 1);
    Take(&exact_steps, kLynxExactSteps * channels);
    Take(&elements, channels);
  }
  static std::size_t OpenBytes(const PageDims& dims) { return 4 * dims.elements() + 2 * kRansLanes; }
  LynxChannels channels() const { return {means, shifts}; }

  float* rows;
  std::int32_t* nested;  // cells, then n
  std::uint8_t *symbols, *residuals;
  std::uint16_t* words;
  std::uint32_t *outermost, *sorted;  // positions of outermost symbols
  std::byte* open;
  std::int32_t *means, *shifts, *classes, *sums;
  float *spreads, *magnitudes, *per_cell;
  std::int16_t *steps, *eighths;  // eighths: of octaves, the spreads
  const LynxTable** tables;
  std::uint32_t* first_of;  // in `sorted`, per channel
  std::uint32_t* exact_steps;
  std::uint16_t* elements;  // a row of them as they came
  std::size_t bytes = 0;

 private:
  template <typename T>
  void Take(T** piece, std::size_t count) {
    bytes += Scratch::BytesFor<T>(count);
    *piece = scratch_ != nullptr ? scratch_->Take<T>(count) : nullptr;
  }
  Scratch* scratch_;
};

// Everything that a decoder needs before the symbols.
void PutClasses(const EncodeWork& work, int channels, int head_dim, std::byte* fixed, Appender* out) {
  BitWriter bits(out->rest());
  LynxPutClasses(work.classes, work.steps, channels, head_dim, fixed, &bits);
  if (bits.ok()) {
    out->Skip(bits.bytes());
  } else {
    out->Fail();
  }
}

// Means, what outermost symbols leave open, low bits of levels. The first bytes of `open` are the lanes'.
bool PutOpenBits(const EncodeWork& work, int tokens, int channels, std::byte* fixed, BitWriter* bits) {
  const int order = LynxPutMeanOrder(work.means, channels, fixed);
  for (int c = 0; c < channels; ++c) {
    bits->PutGolomb(ZigZag(work.means[c]), order);
    for (std::uint32_t i = work.first_of[c]; i < work.first_of[c + 1]; ++i) {
      LynxPutOpen(work.nested[work.sorted[i]] >> kLynxResidualBits, work.shifts[c], bits);
    }
  }
  bits->Finish();
  for (int c = 0; c < channels; ++c) {
    const int shift = work.shifts[c];
    if (shift == 0) continue;
    const std::int32_t* nested = work.nested + c;
    for (int token = 0; token < tokens; ++token, nested += channels) {
      bits->Put(LynxLowOf(*nested >> kLynxResidualBits, shift), shift);
    }
  }
  bits->Finish();
  return bits->ok();
}

// States, words, open bits; the first open bytes travel in the states.
void PutSymbols(const LynxKernels& kernels, const EncodeWork& work, int tokens, int channels, std::size_t open_bytes,
                std::byte* fixed, Appender* out) {
  const std::size_t lanes = std::size_t(RansLanesOf(channels)), elements = std::size_t(tokens) * std::size_t(channels);
  std::memset(work.open, 0, 2 * lanes);
  BitWriter bits(std::span(work.open, open_bytes));
  if (!PutOpenBits(work, tokens, channels, fixed, &bits)) return out->Fail();
  std::array<std::uint16_t, kRansLanes> carried{};
  for (std::size_t lane = 0; lane < lanes; ++lane) carried[lane] = LoadLittle<std::uint16_t>(work.open + 2 * lane);
  RansStates states;
  std::uint16_t* end = work.words + kRansSlackWords + elements;
  const std::uint16_t* word =
      kernels.rans_encode({tokens, channels, work.tables}, work.symbols, std::span(carried).first(lanes), end, &states);
  if (std::byte* to = out->Take(4 * lanes)) {
    for (std::size_t lane = 0; lane < lanes; ++lane) StoreLittle(states[lane], to + 4 * lane);
  }
  if (std::byte* to = out->Take(2 * std::size_t(end - word))) {
    for (; word != end; ++word, to += 2) StoreLittle(*word, to);
  }
  if (bits.bytes() <= 2 * lanes) return;
  if (std::byte* to = out->Take(bits.bytes() - 2 * lanes)) {
    std::memcpy(to, work.open + 2 * lanes, bits.bytes() - 2 * lanes);
  }
}

// Coded rows turn into those before RoPE; then their steps and cells.
void ChooseCells(const LynxKernels& kernels, const PageDims& dims, const Parts& parts, const RopeTable* rope,
                 const LynxRate& rate, const EncodeWork& work) {
  const int channels = dims.channels, head_dim = dims.head_dim();
  float* rows = work.rows + std::size_t(parts.sinks) * std::size_t(channels);
  TurnHeads(kernels.unrotate, rope, dims, parts.sinks, dims.tokens, rows);
  kernels.magnitudes(rows, parts.coded, channels, work.magnitudes);
  if (rate.steps == nullptr) {
    kernels.spreads(rows, parts.coded, channels, work.spreads);
    for (int c = 0; c < channels; ++c) work.eighths[c] = std::int16_t(EighthOctavesOf(work.spreads[c]));
  }
  for (int first = 0; first < channels; first += head_dim) {
    LynxChooseSteps(LynxTables::Get(), rate, work.magnitudes, work.eighths, first, head_dim, work.steps);
  }
  for (int c = 0; c < channels; ++c) work.per_cell[c] = EighthOctave(32 - work.steps[c]);  // 16 / step
  kernels.cells(rows, parts.coded, channels, work.per_cell, work.nested);
}

// Means and classes, then levels as symbols, and residuals.
void ChooseSymbols(const LynxKernels& kernels, int tokens, int channels, const EncodeWork& work) {
  kernels.cell_sums(work.nested, tokens, channels, work.sums);
  for (int c = 0; c < channels; ++c) work.means[c] = LynxMeanOf(work.sums[c], tokens);
  kernels.cell_distances(work.nested, tokens, channels, work.means, work.sums);
  for (int c = 0; c < channels; ++c) {
    work.classes[c] = LynxTables::ClassOf(work.sums[c], tokens);
    work.shifts[c] = LynxShift(work.classes[c]);
    work.tables[c] = &LynxTables::Get()[LynxTableOf(work.classes[c])];
  }
  kernels.split(work.nested, tokens, channels, work.channels(), work.symbols, work.residuals);
  const std::size_t count =
      kernels.find_outermost(work.symbols, std::size_t(tokens) * std::size_t(channels), work.outermost);
  LynxSortByChannel(work.outermost, count, channels, work.sorted, work.first_of);
}

// The exact stream. What all other streams give takes the place of the coded rows.
bool PutExact(const LynxKernels& kernels, ConstRows from, const PageDims& dims, const Parts& parts,
              const RopeTable* rope, const EncodeWork& work, Appender* out) {
  const int channels = dims.channels, head_dim = dims.head_dim();
  const std::size_t width = std::size_t(channels), elements = std::size_t(parts.coded) * width;
  float* values = work.rows + std::size_t(parts.sinks) * width;
  float* half_cells = work.per_cell;
  for (int c = 0; c < channels; ++c) half_cells[c] = EighthOctave(work.steps[c] - 40);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t c = i % width;
    values[i] = LynxValueOf(2 * work.nested[i] - 15 + 8 * work.means[c], half_cells[c]);
  }
  TurnHeads(kernels.rotate, rope, dims, parts.sinks, dims.tokens, values);
  LynxExactEncoder encoder({channels, head_dim, rope, half_cells}, std::span(work.words, elements), work.exact_steps);
  for (int token = dims.tokens - 1; token >= parts.sinks; --token) {
    kernels.widen(from.From(token), 1, channels, work.magnitudes);
    for (std::size_t c = 0; c < width; ++c) work.elements[c] = FloatToBf16(work.magnitudes[c]);
    if (!encoder.AddRow(token, work.rows + std::size_t(token) * width, work.elements)) return false;
  }
  std::byte* to = out->Take(kLynxExactStateBytes + 2 * encoder.words().size());
  if (to == nullptr) return false;
  for (const std::uint32_t state : encoder.states()) StoreLittle(state, to), to += 4;
  for (const std::uint16_t word : encoder.words()) StoreLittle(word, to), to += 2;
  return true;
}

}  // namespace

std::size_t LynxCodec::WorkBytes(const PageDims& dims) const { return EncodeWork(dims, nullptr).bytes; }

bool LynxCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                           std::span<std::size_t> payload_bytes, Scratch scratch) const {
  const int channels = dims.channels, head_dim = dims.head_dim();
  const std::size_t width = std::size_t(channels);
  Parts parts = PartsOf(dims);
  if (parts.coded == 0) return false;
  parts.recent = RecentOf(dims, parts.coded, parameters_.recent);
  const EncodeWork work(dims, &scratch);
  kernels_.widen(rows, dims.tokens, channels, work.rows);
  if (!AllWithin(work.rows, dims.elements(), kMaxMagnitude)) return false;
  ChooseCells(kernels_, dims, parts, RopeOf(dims.address), RateOf(dims), work);
  ChooseSymbols(kernels_, parts.coded, channels, work);

  const std::size_t most_bytes = kLynxMostBytes * dims.elements();
  Appender out(std::span(payloads[0], most_bytes));
  std::byte* fixed = out.Take(LynxHeadBytes(dims));
  std::byte* sinks = out.Take(SinkBytes(dims, parts.sinks));
  std::byte* recent = out.Take(RowBytes(parts.recent, channels, kLynxResidualBits));
  if (!out.ok()) return false;
  fixed[0] = std::byte(parts.recent);
  PutClasses(work, channels, head_dim, fixed, &out);
  PutSymbols(kernels_, work, parts.coded, channels, EncodeWork::OpenBytes(dims), fixed, &out);
  std::size_t total = out.size();
  const int bits = StreamBits();
  for (int stream = 1; stream < parameters_.streams; ++stream) {
    payload_bytes[std::size_t(stream)] = RowBytes(parts.plain(), channels, bits);
    total += payload_bytes[std::size_t(stream)];
  }
  if (!out.ok() || total >= most_bytes) return false;
  payload_bytes[0] = out.size();

  CopyElements(reinterpret_cast<const std::byte*>(work.rows), ElementType::kF32, std::size_t(parts.sinks) * width,
               dims.element_type, sinks);
  PackRows(work.residuals + std::size_t(parts.plain()) * width, parts.recent, channels, kLynxResidualBits, 0, recent);
  for (int stream = 1; stream < parameters_.streams; ++stream) {
    PackRows(work.residuals, parts.plain(), channels, bits, kLynxResidualBits - stream * bits,
             payloads[std::size_t(stream)]);
  }
  if (!parameters_.exact) return true;
  Appender exact(std::span(payloads[std::size_t(parameters_.streams)], most_bytes - total));
  if (!PutExact(kernels_, rows, dims, parts, RopeOf(dims.address), work, &exact)) return false;
  payload_bytes[std::size_t(parameters_.streams)] = exact.size();
  return true;
}

}  // namespace lynx
