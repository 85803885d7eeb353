#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/status_macros.h"
#include "codec/bit_io.h"
#include "codec/lynx_codec.h"
#include "codec/lynx_exact.h"
#include "codec/lynx_payload.h"
#include "codec/lynx_reference.h"
#include "codec/page_io.h"

namespace lynx {
namespace {

// What decoding keeps: centres in 32nds of a step but for the residual, all coded tokens; and per channel. Fits what
// encoding needs.
struct DecodeWork {
  DecodeWork(const PageDims& dims, Scratch scratch)
      : centres(scratch.Take<std::int32_t>(dims.elements())),
        symbols(scratch.Take<std::uint8_t>(dims.elements())),
        outermost(scratch.Take<std::uint32_t>(dims.elements())),
        sorted(scratch.Take<std::uint32_t>(dims.elements())),
        classes(scratch.Take<std::int32_t>(std::size_t(dims.channels))),
        means(scratch.Take<std::int32_t>(std::size_t(dims.channels))),
        shifts(scratch.Take<std::int32_t>(std::size_t(dims.channels))),
        steps(scratch.Take<std::int16_t>(std::size_t(dims.channels))),
        centre_steps(scratch.Take<float>(std::size_t(dims.channels))),
        fine(scratch.Take<std::uint8_t>(std::size_t(dims.channels))),
        tables(scratch.Take<const LynxTable*>(std::size_t(dims.channels))),
        first_of(scratch.Take<std::uint32_t>(std::size_t(dims.channels) + 1)),
        chunk(scratch.Take<float>(std::size_t(std::min(dims.tokens, kChunkTokens)) * std::size_t(dims.channels))),
        exact(scratch.Take<std::uint16_t>(dims.elements())) {}
  std::int32_t* centres;
  std::uint8_t* symbols;
  std::uint32_t *outermost, *sorted;  // positions of outermost symbols; what they leave open
  std::int32_t *classes, *means, *shifts;
  std::int16_t* steps;
  float* centre_steps;  // a 32nd of a step
  std::uint8_t* fine;   // a row's known residual bits, in 32nds of a step
  const LynxTable** tables;
  std::uint32_t* first_of;  // in `sorted`, per channel
  float* chunk;             // rows of values on their way to BF16
  std::uint16_t* exact;     // elements of the coded tokens, by the exact stream
};

// Stream 0 up to the coder's states.
struct Fields {
  Parts parts;
  int mean_order = 0;
  std::span<const std::byte> coded;
};

Status Damaged() { return Corrupt("page stream payload does not fit the page's shape"); }

Status ReadFields(std::span<const std::byte> payload, const PageDims& dims, const DecodeWork& work, Fields* fields) {
  ByteReader reader(payload);
  Parts& parts = fields->parts;
  parts = PartsOf(dims);
  const std::span<const std::byte> head = reader.GetBytes(LynxHeadBytes(dims));
  const std::span<const std::byte> sinks = reader.GetBytes(SinkBytes(dims, parts.sinks));
  if (!reader.ok() || parts.coded == 0) return Damaged();
  parts.recent = int(head[0]);
  fields->mean_order = int(head[2]) >> 4;
  if (parts.recent > parts.coded || int(head[3]) - 1 > kLynxMaxOrder) return Damaged();
  if (!SinksWithin(sinks.data(), std::size_t(parts.sinks) * std::size_t(dims.channels), dims.element_type)) {
    return Corrupt("page stream has a sink that is not finite or too large");
  }
  reader.GetBytes(RowBytes(parts.recent, dims.channels, kLynxResidualBits));
  const std::span<const std::byte> rest = reader.GetBytes(reader.left());
  if (!reader.ok()) return Damaged();
  BitReader bits(rest);
  if (!LynxGetClasses(head.data(), dims.channels, &bits, work.classes)) return Damaged();
  if (!LynxGetSteps(head.data(), dims.channels, dims.head_dim(), &bits, work.steps)) {
    return Corrupt("page stream has an impossible step");
  }
  for (int c = 0; c < dims.channels; ++c) {
    work.shifts[c] = LynxShift(work.classes[c]);
    work.tables[c] = &LynxTables::Get()[LynxTableOf(work.classes[c])];
    work.centre_steps[c] = EighthOctave(work.steps[c] - 40);
  }
  fields->coded = rest.subspan(bits.bytes());
  return Ok();
}

// Means and what the outermost symbols leave open, in 32nds of a step, which replaces work.outermost.
Status ReadMeans(const LynxKernels& kernels, const Fields& fields, int channels, const DecodeWork& work,
                 BitReader* open) {
  const std::size_t elements = std::size_t(fields.parts.coded) * std::size_t(channels);
  const std::size_t count = kernels.find_outermost(work.symbols, elements, work.outermost);
  LynxSortByChannel(work.outermost, count, channels, work.sorted, work.first_of);
  for (int c = 0; c < channels; ++c) {
    work.means[c] = UnZigZag(open->GetGolomb(fields.mean_order));
    if (work.means[c] > kLynxGreatestLevel || work.means[c] < -kLynxGreatestLevel) return Damaged();
    const int shift = work.shifts[c];
    const std::uint32_t bound = std::uint32_t(kLynxGreatestLevel >> shift) - kLynxOutermost;
    for (std::uint32_t i = work.first_of[c]; i < work.first_of[c + 1]; ++i) {
      const std::uint32_t above = open->GetGolomb(kLynxOpenOrder);
      if (above > bound) return Damaged();
      work.outermost[i] = above << (5 + shift);
    }
  }
  open->SkipPadding();
  return Ok();
}

// The centres of the levels that symbols and open bits give.
void ReadCentres(const LynxKernels& kernels, int tokens, int channels, const DecodeWork& work, BitReader* open) {
  kernels.centres(work.symbols, tokens, channels, {work.means, work.shifts}, work.centres);
  for (std::uint32_t i = 0; i < work.first_of[channels]; ++i) {
    const std::uint32_t at = work.sorted[i];
    const auto above = std::int32_t(work.outermost[i]);
    work.centres[at] += work.symbols[at] == 0 ? -above : above;
  }
  for (int c = 0; c < channels; ++c) {
    const int shift = work.shifts[c];
    if (shift == 0) continue;
    std::int32_t* centre = work.centres + c;
    for (int token = 0; token < tokens; ++token, centre += channels) *centre += std::int32_t(open->Get(shift)) << 5;
  }
}

void LoadSink(std::span<const std::byte> payload, const PageDims& dims, int token, float* row) {
  CopyElements(payload.data() + LynxHeadBytes(dims) + SinkBytes(dims, token), dims.element_type,
               std::size_t(dims.channels), ElementType::kF32, reinterpret_cast<std::byte*>(row));
}

}  // namespace

Status LynxCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const {
  const DecodeWork work(dims, scratch);
  Fields fields;
  LYNX_RETURN_IF_ERROR(ReadFields(payloads[0], dims, work, &fields));
  for (std::size_t stream = 1; stream < payloads.size() && !IsExactStream(int(stream)); ++stream) {
    if (payloads[stream].size() != RowBytes(fields.parts.plain(), dims.channels, StreamBits())) return Damaged();
  }
  const std::size_t lanes = std::size_t(RansLanesOf(dims.channels));
  ByteReader coded(fields.coded);
  RansStates states{};
  for (std::size_t lane = 0; lane < lanes; ++lane) states[lane] = coded.Get<std::uint32_t>();
  if (!coded.ok()) return Damaged();
  const std::span<const std::byte> words = coded.GetBytes(coded.left());
  std::array<std::uint16_t, kRansLanes> carried{};
  std::size_t used = 0;
  LYNX_RETURN_IF_ERROR(kernels_.rans_decode({fields.parts.coded, dims.channels, work.tables}, states, words,
                                            work.symbols, carried, &used));

  std::array<std::byte, 2 * kRansLanes> carried_bytes;
  for (std::size_t lane = 0; lane < lanes; ++lane) StoreLittle(carried[lane], carried_bytes.data() + 2 * lane);
  const std::span<const std::byte> first = std::span(carried_bytes).first(2 * lanes), rest = words.subspan(2 * used);
  BitReader open(first, rest);
  LYNX_RETURN_IF_ERROR(ReadMeans(kernels_, fields, dims.channels, work, &open));
  ReadCentres(kernels_, fields.parts.coded, dims.channels, work, &open);
  const std::size_t present = first.size() + rest.size();
  if (!open.ok() || std::max(open.bytes(), first.size()) != present) return Damaged();
  return IsExactStream(int(payloads.size()) - 1) ? CheckExact(payloads, dims, scratch) : Ok();
}

// Decodes the exact stream, so that DecodeRows only copies.
Status LynxCodec::CheckExact(Payloads payloads, const PageDims& dims, Scratch scratch) const {
  const DecodeWork work(dims, scratch);
  const std::size_t width = std::size_t(dims.channels);
  const int sinks = PartsOf(dims).sinks;
  LynxExactDecoder decoder({dims.channels, dims.head_dim(), RopeOf(dims.address), work.centre_steps}, payloads.back());
  for (int chunk = 0; chunk < dims.chunks(); ++chunk) {
    const int first = chunk * kChunkTokens, end = first + dims.ChunkTokens(chunk);
    DecodeCells(payloads.first(payloads.size() - 1), dims, chunk, work.chunk, scratch);
    for (int token = std::max(first, sinks); token < end; ++token) {
      decoder.GetRow(token, work.chunk + std::size_t(token - first) * width,
                     work.exact + std::size_t(token - sinks) * width);
    }
  }
  return decoder.Finish();
}

void LynxCodec::DecodeValues(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const {
  if (!IsExactStream(int(payloads.size()) - 1)) return DecodeCells(payloads, dims, chunk, rows, scratch);
  const DecodeWork work(dims, scratch);
  const std::size_t width = std::size_t(dims.channels);
  const int sinks = PartsOf(dims).sinks, first = chunk * kChunkTokens, end = first + dims.ChunkTokens(chunk);
  for (int token = first; token < end; ++token, rows += width) {
    if (token < sinks) {
      LoadSink(payloads[0], dims, token, rows);
      continue;
    }
    const std::uint16_t* elements = work.exact + std::size_t(token - sinks) * width;
    for (std::size_t c = 0; c < width; ++c) rows[c] = Bf16ToFloat(elements[c]);
  }
}

void LynxCodec::DecodeCells(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const {
  const int channels = dims.channels;
  const std::size_t width = std::size_t(channels);
  Parts parts = PartsOf(dims);
  parts.recent = int(payloads[0][0]);
  const DecodeWork work(dims, scratch);
  const std::byte* recent = payloads[0].data() + LynxHeadBytes(dims) + SinkBytes(dims, parts.sinks);
  const int first = chunk * kChunkTokens, tokens = dims.ChunkTokens(chunk), bits = StreamBits();
  for (int token = first; token < first + tokens; ++token) {
    float* row = rows + std::size_t(token - first) * width;
    if (token < parts.sinks) {
      LoadSink(payloads[0], dims, token, row);
      continue;
    }
    const int coded = token - parts.sinks;
    int known = 0;
    std::fill_n(work.fine, width, std::uint8_t{0});
    if (coded >= parts.plain()) {
      known = kLynxResidualBits;
      AddRow(recent, channels, kLynxResidualBits, coded - parts.plain(), 1, work.fine);
    } else {
      for (std::size_t stream = 1; stream < payloads.size(); ++stream) {
        known += bits;
        AddRow(payloads[stream].data(), channels, bits, coded, 5 - known, work.fine);
      }
    }
    kernels_.values(work.centres + std::size_t(coded) * width, work.fine, LynxHalfCell(known), channels,
                    work.centre_steps, row);
  }
  const int turned = std::max(first, parts.sinks);
  TurnHeads(kernels_.rotate, RopeOf(dims.address), dims, turned, first + tokens,
            rows + std::size_t(turned - first) * width);
}

void LynxCodec::DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const {
  if (rows.type == ElementType::kF32) return DecodeValues(payloads, dims, chunk, ValuesOf(rows), scratch);
  const DecodeWork work(dims, scratch);
  DecodeValues(payloads, dims, chunk, work.chunk, scratch);
  kernels_.narrow(work.chunk, dims.ChunkTokens(chunk), dims.channels, rows);
}

}  // namespace lynx
