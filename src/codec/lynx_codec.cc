#include "codec/lynx_codec.h"

#include <algorithm>

#include "codec/lynx_payload.h"
#include "codec/lynx_reference.h"

namespace lynx {
namespace {

// Per value of a full page: step offsets, and by how much the rate of pages exceeds that of the profile's mean page
// (measured on the caches of docs/codec.md §3.6).
constexpr double kOffsetBits = 0.035;

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
    : PageCodec(Info(spec, parameters.streams), CodecId::kLynx, shape),
      kernels_(kernels),
      parameters_(parameters),
      ropes_(shape, kPageTokens) {
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
  return parameters_.unrope ? ropes_.Of(address) : nullptr;
}

int LynxCodec::StreamBits() const { return kLynxResidualBits / (parameters_.streams - 1); }

std::size_t LynxCodec::PayloadBytes(const PageDims& dims, int stream) const {
  if (stream > 0) return RowBytes(dims.tokens, dims.channels, StreamBits());
  return kLynxMostBytes * dims.elements();
}

std::size_t LynxCodec::ExpectedPayloadBytes(const PageDims& dims, int stream) const {
  if (stream > 0) return PayloadBytes(dims, stream);
  const auto bytes = std::size_t(parameters_.anchor_bits * double(dims.elements()) / 8);
  return bytes > kPageStreamHeaderBytes ? bytes - kPageStreamHeaderBytes : bytes;
}

std::size_t LynxCodec::WorkBytes(const PageDims& dims) const { return EncodeBytes(dims); }

const std::int16_t* LynxCodec::WantedSteps(const PageAddress& address, int head_dim) const {
  if (steps_.empty()) return nullptr;
  const std::size_t slot = 2 * std::size_t(address.layer) + std::size_t(address.kind);
  return steps_[slot].data() + address.first_head * head_dim;
}

// Bits per value that are left for symbols once everything else of a page is paid: header, fixed fields, half a word
// that each lane wastes on average, and about 12 bits per channel for its class, its mean, and the distance of its
// values from the table's density (measured on the caches of docs/codec.md §3.6).
double LynxCodec::SymbolBits(double anchor_bits, int tokens, int channels) {
  const double fixed = 8.0 * (kPageStreamHeaderBytes + kLynxFixedBytes + 2) + 8.0 * RansLanesOf(channels);
  const double overhead = fixed / (double(tokens) * channels) + 12.0 / tokens;
  return std::max(anchor_bits - overhead, anchor_bits / 2);
}

}  // namespace lynx
