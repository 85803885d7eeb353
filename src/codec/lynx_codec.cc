#include "codec/lynx_codec.h"

#include <algorithm>

#include "codec/lynx_payload.h"
#include "codec/lynx_reference.h"

namespace lynx {
namespace {

// Per value of a full page: step offsets, and by how much the rate of pages exceeds that of the profile's mean page
// (measured on the caches of docs/codec.md §3.6).
constexpr double kOffsetBits = 0.035;

// Bits per value of all streams together that restore a BF16 cache, about (docs/codec.md §3.6).
constexpr double kExactBits = 10.4;

// Rates between LeastSymbolBits and anchor_bits for which delta is known; straight lines between them.
constexpr double kRateGrid = 1.0 / 16;

CodecInfo Info(const std::string& spec, int streams) {
  CodecInfo info;
  info.name = "lynx";
  info.spec = spec;
  info.stream_count = streams;
  info.heads_per_page = 1;
  return info;
}

}  // namespace

LynxCodec::LynxCodec(const CacheShape& shape, const LynxKernels& kernels, const LynxParameters& parameters,
                     const std::string& spec, const LynxProfile* profile)
    : PageCodec(Info(spec, parameters.streams + int(parameters.exact)), CodecId::kLynx, shape),
      kernels_(kernels),
      parameters_(parameters),
      ropes_(shape, kPageTokens) {
  if (profile == nullptr) return;
  for (double bits = LeastSymbolBits(); bits < parameters.anchor_bits + kRateGrid; bits += kRateGrid) {
    deltas_.push_back(LynxDeltaOf(*profile, bits));
  }
  for (int part = 0; part < kDeltaParts; ++part) {
    for (std::size_t slot = 0; slot < profile->size(); ++slot) {
      const std::size_t head_dim = std::size_t(shape.layers[slot / 2].HeadDim(KvKind(slot % 2)));
      const std::span<const LynxChannelProfile> row((*profile)[slot]);
      if (part == 0) row_begins_.push_back(steps_.size());
      for (std::size_t first = 0; first < row.size(); first += head_dim) {
        const auto head = LynxProfileSteps(row.subspan(first, head_dim), deltas_.back() + part);
        steps_.insert(steps_.end(), head.begin(), head.end());
      }
    }
  }
}

const RopeTable* LynxCodec::RopeOf(const PageAddress& address) const {
  return parameters_.unrope ? ropes_.Of(address) : nullptr;
}

int LynxCodec::StreamBits() const { return kLynxResidualBits / (parameters_.streams - 1); }

std::size_t LynxCodec::PayloadBytes(const PageDims& dims, int stream) const {
  if (stream > 0 && !IsExactStream(stream)) return RowBytes(dims.tokens, dims.channels, StreamBits());
  return kLynxMostBytes * dims.elements();
}

std::size_t LynxCodec::ExpectedPayloadBytes(const PageDims& dims, int stream) const {
  if (stream > 0 && !IsExactStream(stream)) return PayloadBytes(dims, stream);
  const double bits = stream == 0 ? parameters_.anchor_bits : kExactBits - kLynxResidualBits - parameters_.anchor_bits;
  const auto bytes = std::size_t(bits * double(dims.elements()) / 8);
  return bytes > kPageStreamHeaderBytes ? bytes - kPageStreamHeaderBytes : bytes;
}

double LynxCodec::LeastSymbolBits() const { return 0.75 * parameters_.anchor_bits; }

// What is left of anchor_bits for symbols, per value, once everything else is paid that stream 0 brings over the whole
// prompt: sinks; residuals of recent tokens; of a page its header, fixed fields, half a word that each lane wastes on
// average, and about 12 bits per channel for its class, its mean, and the distance of its values from the table's
// density (measured on the caches of docs/codec.md §3.6).
double LynxCodec::SymbolBits(const PageDims& dims) const {
  double bits = parameters_.anchor_bits;
  if (dims.tokens_after >= 0) {
    const double prompt = double(dims.address.first_token) + dims.tokens + dims.tokens_after;
    const double recent = std::min(double(parameters_.recent), prompt);
    bits -= (8.0 * ElementBytes(dims.element_type) * std::min(double(kSinks), prompt) + kLynxResidualBits * recent) /
            prompt;
  }
  const int coded = PartsOf(dims).coded;
  const double fixed = 8.0 * (kPageStreamHeaderBytes + kLynxFixedBytes + 2) + 8.0 * RansLanesOf(dims.channels);
  bits -= fixed / (double(coded) * dims.channels) + 12.0 / coded;
  return std::max(bits, LeastSymbolBits());
}

LynxRate LynxCodec::RateOf(const PageDims& dims) const {
  LynxRate rate;
  rate.bits = SymbolBits(dims);
  if (deltas_.empty()) return rate;
  const double at = std::max((rate.bits - kOffsetBits - LeastSymbolBits()) / kRateGrid, 0.0);
  const std::size_t before = std::min(std::size_t(at), deltas_.size() - 2);
  const double delta = deltas_[before] + (at - double(before)) * (deltas_[before + 1] - deltas_[before]);
  const int above = std::max(int(delta + 0.5) - deltas_.back(), 0);
  const std::size_t slot = 2 * std::size_t(dims.address.layer) + std::size_t(dims.address.kind);
  const int first = dims.address.first_head * dims.head_dim();
  const std::size_t part = steps_.size() / kDeltaParts * std::size_t(above % kDeltaParts);
  rate.steps = steps_.data() + part + row_begins_[slot] + first;
  rate.add = above / kDeltaParts;
  return rate;
}

}  // namespace lynx
