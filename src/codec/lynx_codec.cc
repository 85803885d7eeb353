#include "codec/lynx_codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/status_macros.h"
#include "codec/lynx_reference.h"
#include "codec/page_parts.h"
#include "codec/rans.h"

namespace lynx {
namespace {

// Payload of stream 0; S sinks, R recent tokens, T' = T - S, L lanes:
//   1           R
//   1           least class
//   1           order of the Golomb codes of classes (low nibble) and of means (high nibble)
//   1           0: one step per head; else 1 + order of the Golomb codes of step offsets
//   2 heads     step of the head's first channel (i16)
//   S H E       elements of the sinks
//   ceil(R/2) H residuals of the recent tokens, nibble rows
//   bits        per channel: class - least class; per channel its step offset; padded to a byte
//   4 L         coder states
//   2 per word  coder words
//   the rest    open bits but for their first 2 L bytes, which the states carry: per channel its mean and what the
//               outermost symbols leave open; padded to a byte; per channel the low bits of its levels
// Payload of a later stream: rows of its bits of the tokens that are neither sinks nor recent.
constexpr std::size_t kFixedBytes = 4;
constexpr int kMaxOrder = 15;
// Per value of a full page: step offsets, and by how much the rate of pages exceeds that of the profile's mean page
// (measured on the caches of docs/codec.md §3.6).
constexpr double kOffsetBits = 0.035;
// Per element, all streams together: a page that needs more travels exactly.
constexpr std::size_t kMostBytes = 2;

CodecInfo Info(const std::string& spec, int streams) {
  CodecInfo info;
  info.name = "lynx";
  info.spec = spec;
  info.stream_count = streams;
  info.heads_per_page = 1;
  return info;
}

// The page's head count where only sizes are asked for does not matter: steps take few bytes.
std::size_t FixedBytes(const PageDims& dims) { return kFixedBytes + 2 * std::size_t(dims.address.head_count); }
std::size_t SinkBytes(const PageDims& dims, int sinks) {
  return std::size_t(sinks) * std::size_t(dims.channels) * std::size_t(ElementBytes(dims.element_type));
}

// The Golomb order that makes these codes shortest.
template <typename ValueOf>
int BestOrder(int count, ValueOf value_of) {
  int best = 0;
  std::int64_t least = INT64_MAX;
  for (int order = 0; order <= kMaxOrder; ++order) {
    std::int64_t bits = 0;
    for (int i = 0; i < count; ++i) bits += GolombBits(value_of(i), order);
    if (bits < least) least = bits, best = order;
  }
  return best;
}

// Appends to a payload; what does not fit makes the page travel exactly.
class Appender {
 public:
  explicit Appender(std::span<std::byte> room) : room_(room) {}
  bool ok() const { return ok_; }
  std::size_t size() const { return size_; }
  // The next `count` bytes, zeroed; null when they do not fit.
  std::byte* Take(std::size_t count) {
    if (count > room_.size() - size_) ok_ = false;
    if (!ok_) return nullptr;
    std::byte* taken = room_.data() + size_;
    std::memset(taken, 0, count);
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

// What encoding keeps per element and channel.
struct EncodeWork {
  EncodeWork(const PageDims& dims, Scratch* scratch)
      : rows(scratch->Take<float>(dims.elements())),
        nested(scratch->Take<std::int32_t>(dims.elements())),
        symbols(scratch->Take<std::uint8_t>(dims.elements())),
        words(scratch->Take<std::uint16_t>(dims.elements())),
        open(scratch->Take<std::byte>(OpenBytes(dims))),
        channels(scratch->Take<LynxChannel>(std::size_t(dims.channels))),
        steps(scratch->Take<std::int16_t>(std::size_t(dims.channels))),
        tables(scratch->Take<const LynxTable*>(std::size_t(dims.channels))) {}
  static std::size_t OpenBytes(const PageDims& dims) { return 4 * dims.elements() + 2 * kRansLanes; }
  static std::size_t Bytes(const PageDims& dims) {
    return Scratch::BytesFor<float>(dims.elements()) + Scratch::BytesFor<std::int32_t>(dims.elements()) +
           Scratch::BytesFor<std::uint8_t>(dims.elements()) + Scratch::BytesFor<std::uint16_t>(dims.elements()) +
           Scratch::BytesFor<std::byte>(OpenBytes(dims)) + Scratch::BytesFor<LynxChannel>(std::size_t(dims.channels)) +
           Scratch::BytesFor<std::int16_t>(std::size_t(dims.channels)) +
           Scratch::BytesFor<const LynxTable*>(std::size_t(dims.channels));
  }
  float* rows;
  std::int32_t* nested;  // cells, then n
  std::uint8_t* symbols;
  std::uint16_t* words;
  std::byte* open;
  LynxChannel* channels;
  std::int16_t* steps;
  const LynxTable** tables;
};

// What decoding keeps: centres in 32nds of a step, all coded tokens.
struct DecodeWork {
  DecodeWork(const PageDims& dims, Scratch* scratch)
      : centres(scratch->Take<std::int32_t>(dims.elements())),
        symbols(scratch->Take<std::uint8_t>(dims.elements())),
        classes(scratch->Take<int>(std::size_t(dims.channels))),
        means(scratch->Take<std::int32_t>(std::size_t(dims.channels))),
        steps(scratch->Take<std::int16_t>(std::size_t(dims.channels))),
        tables(scratch->Take<const LynxTable*>(std::size_t(dims.channels))) {}
  std::int32_t* centres;
  std::uint8_t* symbols;
  int* classes;
  std::int32_t* means;
  std::int16_t* steps;
  const LynxTable** tables;
};

// A channel's step is its head's plus two eighths of an octave times an offset, which is told as the difference from
// the channel before it.
void PutSteps(const EncodeWork& work, int channels, int head_dim, std::byte* fixed, BitWriter* bits) {
  const auto code = [&](int c) {
    return ZigZag(c % head_dim == 0 ? 0 : (work.steps[c] - work.steps[c - 1]) / kLynxOffsetUnit);
  };
  bool offsets = false;
  for (int c = 0; c < channels; ++c) {
    if (c % head_dim == 0) StoreLittle(work.steps[c], fixed + kFixedBytes + 2 * (c / head_dim));
    offsets = offsets || code(c) != 0;
  }
  if (!offsets) return;
  const int order = BestOrder(channels, code);
  fixed[3] = std::byte(1 + order);
  for (int c = 0; c < channels; ++c) bits->PutGolomb(code(c), order);
}

// Everything that a decoder needs before the symbols.
void PutClasses(const EncodeWork& work, int channels, int head_dim, std::byte* fixed, Appender* out) {
  int least = kLynxClasses;
  for (int c = 0; c < channels; ++c) least = std::min(least, work.channels[c].channel_class);
  const auto code = [&](int c) { return std::uint32_t(work.channels[c].channel_class - least); };
  const int order = BestOrder(channels, code);
  fixed[1] = std::byte(least);
  fixed[2] |= std::byte(order);
  BitWriter bits(out->rest());
  for (int c = 0; c < channels; ++c) bits.PutGolomb(code(c), order);
  PutSteps(work, channels, head_dim, fixed, &bits);
  bits.Finish();
  if (bits.ok()) {
    out->Skip(bits.bytes());
  } else {
    out->Fail();
  }
}

// Means and open bits, then the symbols; the first open bytes travel in the coder's states.
void PutSymbols(const EncodeWork& work, int tokens, int channels, std::size_t open_bytes, std::byte* fixed,
                Appender* out) {
  const auto mean_code = [&](int c) { return ZigZag(work.channels[c].mean); };
  const int order = BestOrder(channels, mean_code);
  fixed[2] |= std::byte(order << 4);
  const std::size_t lanes = std::size_t(RansLanesOf(channels));
  std::memset(work.open, 0, 2 * lanes);
  BitWriter bits(std::span(work.open, open_bytes));
  for (int c = 0; c < channels; ++c) {
    const int shift = LynxShift(work.channels[c].channel_class);
    work.tables[c] = &LynxTables::Get()[LynxTableOf(work.channels[c].channel_class)];
    bits.PutGolomb(mean_code(c), order);
    for (int token = 0; token < tokens; ++token) {
      const std::size_t at = std::size_t(token) * std::size_t(channels) + std::size_t(c);
      const std::int32_t level = work.nested[at] >> kLynxResidualBits;
      work.symbols[at] = LynxSymbolOf(level, shift);
      LynxPutHigh(level, shift, &bits);
    }
  }
  bits.Finish();
  for (int c = 0; c < channels; ++c) {
    const int shift = LynxShift(work.channels[c].channel_class);
    for (int token = 0; token < tokens && shift > 0; ++token) {
      const std::size_t at = std::size_t(token) * std::size_t(channels) + std::size_t(c);
      bits.Put(LynxLowOf(work.nested[at] >> kLynxResidualBits, shift), shift);
    }
  }
  bits.Finish();
  if (!bits.ok()) {
    out->Fail();
    return;
  }
  std::array<std::uint16_t, kRansLanes> carried{};
  for (std::size_t lane = 0; lane < lanes; ++lane) carried[lane] = LoadLittle<std::uint16_t>(work.open + 2 * lane);
  RansStates states;
  std::uint16_t* end = work.words + std::size_t(tokens) * std::size_t(channels);
  const std::uint16_t* word =
      RansEncode({tokens, channels, work.tables}, work.symbols, std::span(carried).first(lanes), end, &states);
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

void PutResiduals(const EncodeWork& work, const Parts& parts, int channels, int width, std::byte* recent,
                  std::span<std::byte* const> streams) {
  for (int token = 0; token < parts.coded; ++token) {
    for (int c = 0; c < channels; ++c) {
      const int residual = work.nested[std::size_t(token) * std::size_t(channels) + std::size_t(c)] & 15;
      if (token >= parts.plain()) {
        PutRow(recent, channels, kLynxResidualBits, token - parts.plain(), c, residual);
        continue;
      }
      int left = kLynxResidualBits;
      for (std::byte* stream : streams) {
        left -= width;
        PutRow(stream, channels, width, token, c, residual >> left & ((1 << width) - 1));
      }
    }
  }
}

// Stream 0 up to the coder's states.
struct Fields {
  Parts parts;
  int mean_order = 0;
  const std::byte* recent = nullptr;
  std::span<const std::byte> coded;
};

Status Damaged() { return Corrupt("page stream payload does not fit the page's shape"); }

// Adds step offsets (order -1: none) to the steps of the heads, and checks all.
Status ReadOffsets(int channels, int head_dim, int order, const DecodeWork& work, BitReader* bits) {
  std::int64_t offset = 0;
  for (int c = 0; c < channels; ++c) {
    if (c % head_dim == 0) offset = 0;
    if (order >= 0) offset += UnZigZag(bits->GetGolomb(order));
    const std::int64_t step = work.steps[c] + kLynxOffsetUnit * offset;
    if (!bits->ok() || step < kLynxLeastStep || step > kLynxGreatestStep) {
      return Corrupt("page stream has an impossible step");
    }
    work.steps[c] = std::int16_t(step);
  }
  return Ok();
}

Status ReadFields(std::span<const std::byte> payload, const PageDims& dims, const DecodeWork& work, Fields* fields) {
  ByteReader reader(payload);
  Parts& parts = fields->parts;
  parts = PartsOf(dims);
  parts.recent = reader.Get<std::uint8_t>();
  const int least_class = reader.Get<std::uint8_t>();
  const int orders = reader.Get<std::uint8_t>();
  fields->mean_order = orders >> 4;
  const int offset_order = int(reader.Get<std::uint8_t>()) - 1;
  if (offset_order > kMaxOrder) return Damaged();
  const int head_dim = dims.channels / dims.address.head_count;
  for (int c = 0; c < dims.channels; ++c) {
    work.steps[c] = c % head_dim == 0 ? reader.Get<std::int16_t>() : work.steps[c - 1];
  }
  reader.GetBytes(SinkBytes(dims, parts.sinks));
  if (!reader.ok() || parts.coded == 0 || parts.recent > parts.coded) return Damaged();
  fields->recent = reader.GetBytes(RowBytes(parts.recent, dims.channels, kLynxResidualBits)).data();
  const std::span<const std::byte> rest = reader.GetBytes(reader.left());
  if (!reader.ok()) return Damaged();
  BitReader bits(rest);
  for (int c = 0; c < dims.channels; ++c) {
    const std::uint32_t above = bits.GetGolomb(orders & 15);
    if (!bits.ok() || above >= std::uint32_t(kLynxClasses) || least_class + int(above) >= kLynxClasses) {
      return Damaged();
    }
    work.classes[c] = least_class + int(above);
    work.tables[c] = &LynxTables::Get()[LynxTableOf(work.classes[c])];
  }
  LYNX_RETURN_IF_ERROR(ReadOffsets(dims.channels, head_dim, offset_order, work, &bits));
  fields->coded = rest.subspan(bits.bytes());
  return Ok();
}

// Means and the levels that symbols and open bits give, into `centres`.
Status ReadLevels(const Fields& fields, int channels, const DecodeWork& work, BitReader* open) {
  const int tokens = fields.parts.coded;
  for (int c = 0; c < channels; ++c) {
    work.means[c] = UnZigZag(open->GetGolomb(fields.mean_order));
    if (work.means[c] > kLynxGreatestLevel || work.means[c] < -kLynxGreatestLevel) return Damaged();
    const std::int64_t bound = kLynxGreatestLevel >> LynxShift(work.classes[c]);
    for (int token = 0; token < tokens; ++token) {
      const std::size_t at = std::size_t(token) * std::size_t(channels) + std::size_t(c);
      const std::int64_t high = LynxHighOf(work.symbols[at], open);
      if (high > bound || high < -bound) return Damaged();
      work.centres[at] = std::int32_t(high);
    }
  }
  open->SkipPadding();
  for (int c = 0; c < channels; ++c) {
    const int shift = LynxShift(work.classes[c]);
    for (int token = 0; token < tokens && shift > 0; ++token) {
      std::int32_t& level = work.centres[std::size_t(token) * std::size_t(channels) + std::size_t(c)];
      level = LynxLevelOf(level, open->Get(shift), shift);
    }
  }
  return Ok();
}

// Levels become centres: joined with what is at hand of the residuals.
void JoinResiduals(std::span<const std::span<const std::byte>> streams, const Fields& fields, int channels, int width,
                   const DecodeWork& work) {
  const Parts& parts = fields.parts;
  const int known = width * int(streams.size());
  for (int token = 0; token < parts.coded; ++token) {
    for (int c = 0; c < channels; ++c) {
      std::int32_t& centre = work.centres[std::size_t(token) * std::size_t(channels) + std::size_t(c)];
      std::int32_t prefix = centre;
      if (token >= parts.plain()) {
        prefix = prefix * 16 + GetRow(fields.recent, channels, kLynxResidualBits, token - parts.plain(), c);
        centre = LynxCentre(prefix, kLynxResidualBits, work.means[c]);
        continue;
      }
      for (const std::span<const std::byte> stream : streams) {
        prefix = prefix * (1 << width) + GetRow(stream.data(), channels, width, token, c);
      }
      centre = LynxCentre(prefix, known, work.means[c]);
    }
  }
}

// Bits per value that are left for symbols once everything else of a page is paid: header, fixed fields, half a word
// that each lane wastes on average, and about 12 bits per channel for its class, its mean, and the distance of its
// values from the table's density (measured on the caches of docs/codec.md §3.6).
double SymbolBits(double anchor_bits, int tokens, int channels) {
  const double fixed = 8.0 * (kPageStreamHeaderBytes + kFixedBytes + 2) + 8.0 * RansLanesOf(channels);
  const double overhead = fixed / (double(tokens) * channels) + 12.0 / tokens;
  return std::max(anchor_bits - overhead, anchor_bits / 2);
}

// The steps of one head: those that the profile wants, on the grid of offsets and not below what an encoder takes; or
// one for all.
void ChooseSteps(const float* values, const HeadRows& rows, double anchor_bits, const std::int16_t* wanted,
                 std::int16_t* steps) {
  if (wanted == nullptr) {
    std::fill_n(steps, rows.head_dim, LynxStepOf(values, rows, SymbolBits(anchor_bits, rows.tokens, int(rows.stride))));
    return;
  }
  const int least = LynxLeastStepOf(values, rows);
  for (int c = 0; c < rows.head_dim; ++c) {
    const int missing = std::max(least - wanted[c], 0);
    steps[c] = std::int16_t(wanted[c] + (missing + kLynxOffsetUnit - 1) / kLynxOffsetUnit * kLynxOffsetUnit);
  }
}

// Rows as they were before RoPE, steps, then n of every element.
void Quantize(const float* values, const PageDims& dims, const Parts& parts, const RopeTable* rope, double anchor_bits,
              const std::int16_t* steps, const EncodeWork& work) {
  const std::size_t channels = std::size_t(dims.channels);
  const int heads = dims.address.head_count, head_dim = dims.channels / heads;
  std::copy_n(values + std::size_t(parts.sinks) * channels, std::size_t(parts.coded) * channels, work.rows);
  if (rope != nullptr) {
    for (int token = 0; token < parts.coded; ++token) {
      float* row = work.rows + std::size_t(token) * channels;
      for (int head = 0; head < heads; ++head) rope->Unrotate(row + head * head_dim, parts.sinks + token);
    }
  }
  const HeadRows rows{parts.coded, head_dim, channels};
  for (int head = 0; head < heads; ++head) {
    const int first = head * head_dim;
    ChooseSteps(work.rows + first, rows, anchor_bits, steps != nullptr ? steps + first : nullptr, work.steps + first);
  }
  LynxCells(work.rows, parts.coded, dims.channels, work.steps, work.nested);
  for (std::size_t c = 0; c < channels; ++c) {
    work.channels[c] = LynxChannelOf(work.nested + c, parts.coded, channels);
    for (int token = 0; token < parts.coded; ++token) {
      std::int32_t& cell = work.nested[std::size_t(token) * channels + c];
      cell = LynxNested(cell, work.channels[c].mean);
    }
  }
}

}  // namespace

LynxCodec::LynxCodec(const CacheShape& shape, const LynxParameters& parameters, const std::string& spec,
                     const LynxProfile* profile)
    : PageCodec(Info(spec, parameters.streams), CodecId::kLynx, shape), parameters_(parameters) {
  std::vector<const RopeShape*> known;
  for (const LayerShape& layer : shape.layers) {
    const bool rotated = parameters.unrope && layer.rope.pairing != RopePairing::kNone;
    const auto same =
        std::find_if(known.begin(), known.end(), [&](const RopeShape* rope) { return *rope == layer.rope; });
    rope_of_layer_.push_back(rotated ? int(same - known.begin()) : -1);
    if (!rotated || same != known.end()) continue;
    known.push_back(&layer.rope);
    ropes_.emplace_back(layer.rope, kPageTokens);
  }
  if (profile == nullptr) return;
  const int widest = std::max(shape.layers[0].key_dim, shape.layers[0].value_dim);
  const int delta = LynxDeltaOf(*profile, SymbolBits(parameters.anchor_bits, kPageTokens, widest) - kOffsetBits);
  for (std::size_t slot = 0; slot < profile->size(); ++slot) {
    auto& steps = steps_.emplace_back();
    const int head_dim = shape.layers[slot / 2].HeadDim(KvKind(slot % 2));
    const std::span<const LynxChannelProfile> row((*profile)[slot]);
    for (std::size_t first = 0; first < row.size(); first += std::size_t(head_dim)) {
      const auto head = LynxProfileSteps(row.subspan(first, std::size_t(head_dim)), delta);
      steps.insert(steps.end(), head.begin(), head.end());
    }
  }
}

const RopeTable* LynxCodec::RopeOf(const PageAddress& address) const {
  const int rope = rope_of_layer_[std::size_t(address.layer)];
  return address.kind == KvKind::kKey && rope >= 0 ? &ropes_[std::size_t(rope)] : nullptr;
}

int LynxCodec::StreamBits() const { return kLynxResidualBits / (parameters_.streams - 1); }

std::size_t LynxCodec::PayloadBytes(const PageDims& dims, int stream) const {
  if (stream > 0) return RowBytes(dims.tokens, dims.channels, StreamBits());
  return kMostBytes * dims.elements();
}

std::size_t LynxCodec::ExpectedPayloadBytes(const PageDims& dims, int stream) const {
  if (stream > 0) return PayloadBytes(dims, stream);
  const auto bytes = std::size_t(parameters_.anchor_bits * double(dims.elements()) / 8);
  return bytes > kPageStreamHeaderBytes ? bytes - kPageStreamHeaderBytes : bytes;
}

std::size_t LynxCodec::WorkBytes(const PageDims& dims) const { return EncodeWork::Bytes(dims); }

bool LynxCodec::EncodeValues(const float* values, const PageDims& dims, std::span<std::byte* const> payloads,
                             std::span<std::size_t> payload_bytes, Scratch scratch) const {
  const int channels = dims.channels;
  Parts parts = PartsOf(dims);
  if (parts.coded == 0) return false;
  if (dims.tokens_after >= 0) parts.recent = std::clamp(parameters_.recent - dims.tokens_after, 0, parts.coded);

  const EncodeWork work(dims, &scratch);
  const std::size_t most_bytes = kMostBytes * dims.elements();
  Appender out(std::span(payloads[0], most_bytes));
  std::byte* fixed = out.Take(FixedBytes(dims));
  if (fixed == nullptr) return false;
  fixed[0] = std::byte(parts.recent);
  const std::size_t slot = 2 * std::size_t(dims.address.layer) + std::size_t(dims.address.kind);
  const int head_dim = channels / dims.address.head_count;
  const std::int16_t* steps = steps_.empty() ? nullptr : steps_[slot].data() + dims.address.first_head * head_dim;
  Quantize(values, dims, parts, RopeOf(dims.address), parameters_.anchor_bits, steps, work);
  if (std::byte* to = out.Take(SinkBytes(dims, parts.sinks))) {
    for (std::size_t i = 0; i < std::size_t(parts.sinks) * std::size_t(channels); ++i) {
      StoreElement(values[i], dims.element_type, to + i * std::size_t(ElementBytes(dims.element_type)));
    }
  }
  std::byte* recent = out.Take(RowBytes(parts.recent, channels, kLynxResidualBits));
  PutClasses(work, channels, head_dim, fixed, &out);
  PutSymbols(work, parts.coded, channels, EncodeWork::OpenBytes(dims), fixed, &out);

  const int width = StreamBits();
  std::size_t total = out.size();
  for (int stream = 1; stream < parameters_.streams; ++stream) {
    const std::size_t bytes = RowBytes(parts.plain(), channels, width);
    std::memset(payloads[std::size_t(stream)], 0, bytes);
    payload_bytes[std::size_t(stream)] = bytes;
    total += bytes;
  }
  if (!out.ok() || total >= most_bytes) return false;
  payload_bytes[0] = out.size();
  PutResiduals(work, parts, channels, width, recent, payloads.subspan(1));
  return true;
}

Status LynxCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const {
  const DecodeWork work(dims, &scratch);
  Fields fields;
  LYNX_RETURN_IF_ERROR(ReadFields(payloads[0], dims, work, &fields));
  const int width = StreamBits();
  for (std::size_t stream = 1; stream < payloads.size(); ++stream) {
    if (payloads[stream].size() != RowBytes(fields.parts.plain(), dims.channels, width)) return Damaged();
  }
  const std::size_t lanes = std::size_t(RansLanesOf(dims.channels));
  ByteReader coded(fields.coded);
  RansStates states{};
  for (std::size_t lane = 0; lane < lanes; ++lane) states[lane] = coded.Get<std::uint32_t>();
  if (!coded.ok()) return Damaged();
  const std::span<const std::byte> words = coded.GetBytes(coded.left());
  std::array<std::uint16_t, kRansLanes> carried{};
  std::size_t used = 0;
  LYNX_RETURN_IF_ERROR(
      RansDecode({fields.parts.coded, dims.channels, work.tables}, states, words, work.symbols, carried, &used));

  std::array<std::byte, 2 * kRansLanes> carried_bytes;
  for (std::size_t lane = 0; lane < lanes; ++lane) StoreLittle(carried[lane], carried_bytes.data() + 2 * lane);
  const std::span<const std::byte> first = std::span(carried_bytes).first(2 * lanes), rest = words.subspan(2 * used);
  BitReader open(first, rest);
  LYNX_RETURN_IF_ERROR(ReadLevels(fields, dims.channels, work, &open));
  const std::size_t present = first.size() + rest.size();
  if (!open.ok() || std::max(open.bytes(), first.size()) != present) return Damaged();
  JoinResiduals(payloads.subspan(1), fields, dims.channels, width, work);
  return Ok();
}

void LynxCodec::DecodeChunk(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const {
  const int channels = dims.channels, heads = dims.address.head_count, head_dim = channels / heads;
  const int sinks = PartsOf(dims).sinks;
  const DecodeWork work(dims, &scratch);
  const RopeTable* rope = RopeOf(dims.address);
  const std::byte* sink_elements = payloads[0].data() + FixedBytes(dims);
  const std::size_t element_bytes = std::size_t(ElementBytes(dims.element_type));
  for (int in_chunk = 0; in_chunk < dims.ChunkTokens(chunk); ++in_chunk) {
    const int token = chunk * kChunkTokens + in_chunk;
    float* row = rows + std::size_t(in_chunk) * std::size_t(channels);
    if (token < sinks) {
      const std::byte* from = sink_elements + std::size_t(token) * std::size_t(channels) * element_bytes;
      for (int c = 0; c < channels; ++c) row[c] = LoadElement(from + std::size_t(c) * element_bytes, dims.element_type);
      continue;
    }
    const std::int32_t* centres = work.centres + std::size_t(token - sinks) * std::size_t(channels);
    for (int head = 0; head < heads; ++head) {
      float* head_row = row + head * head_dim;
      for (int c = head * head_dim; c < (head + 1) * head_dim; ++c) {
        row[c] = float(centres[c]) * EighthOctave(work.steps[c] - 40);  // step / 32
      }
      if (rope != nullptr) rope->Rotate(head_row, token);
    }
  }
}

}  // namespace lynx
