#include "baselines/cachegen_codec.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "baselines/numbers.h"

namespace lynx {
namespace {

constexpr int kTokensPerAnchor = 10;
constexpr int kAnchorLevel = 127;
// Levels of the authors' configuration for 7B models, 32 layers: 32 bins in the first 10 layers of K and 2 of V, then
// 16; bins / 2 - 1 is the greatest level.
constexpr int kConfiguredLayers = 32, kFineKeyLayers = 10, kFineValueLayers = 2;
constexpr int kFineLevel = 15, kCoarseLevel = 7;

// A table of frequencies as LMCache ships it: 33 numbers of 16 bits per channel, whatever the levels.
constexpr int kCdfEntries = 2 * kFineLevel + 3;
constexpr std::uint32_t kCdfTotal = 1u << 15;

// cumulative[s] is the first slot of symbol s; behind the last symbol all is kCdfTotal. counts: of `symbols` symbols.
void MakeCdf(const std::uint32_t* counts, int symbols, std::uint32_t* cumulative) {
  std::uint32_t seen = 0;
  for (int s = 0; s < symbols; ++s) seen += counts[s];
  std::uint32_t frequencies[kCdfEntries] = {};
  std::uint32_t left = kCdfTotal;
  for (int s = 0; s < symbols; ++s) {
    frequencies[s] = 1u + (seen > 0 ? counts[s] * (kCdfTotal - std::uint32_t(symbols)) / seen : 0u);
    left -= frequencies[s];
  }
  *std::max_element(frequencies, frequencies + symbols) += left;
  cumulative[0] = 0;
  for (int s = 1; s < kCdfEntries; ++s) cumulative[s] = cumulative[s - 1] + frequencies[s - 1];
}

bool GetCdf(int symbols, BitReader* in, std::uint32_t* cumulative) {
  for (int s = 0; s < kCdfEntries; ++s) cumulative[s] = in->Get(16);
  return cumulative[0] == 0 && std::is_sorted(cumulative, cumulative + symbols + 1) && cumulative[symbols] == kCdfTotal;
}

// Either kind of model for the symbols of tokens that are not anchors.
class DeltaCoder {
 public:
  DeltaCoder(const std::uint32_t* cdfs, int channels, int symbols, Scratch* scratch)
      : cdfs_(cdfs), adaptive_(cdfs == nullptr ? channels : 0, symbols, scratch) {}
  void Put(int channel, int symbol, RangeEncoder* out) {
    if (cdfs_ == nullptr) return adaptive_.Put(channel, symbol, out);
    const std::uint32_t* cdf = cdfs_ + channel * kCdfEntries;
    out->Put(cdf[symbol], cdf[symbol + 1] - cdf[symbol], kCdfTotal);
  }
  int Get(int channel, RangeDecoder* in) {
    if (cdfs_ == nullptr) return adaptive_.Get(channel, in);
    const std::uint32_t* cdf = cdfs_ + channel * kCdfEntries;
    const std::uint32_t at = in->Peek(kCdfTotal);
    int symbol = 0;
    while (cdf[symbol + 1] <= at) ++symbol;
    in->Take(cdf[symbol], cdf[symbol + 1] - cdf[symbol]);
    return symbol;
  }

 private:
  const std::uint32_t* cdfs_;  // [channel][entry] or null
  AdaptiveModel adaptive_;
};

}  // namespace

CacheGenCodec::CacheGenCodec(const std::string& spec, const CacheShape& shape, const CacheGenParameters& parameters)
    : BaselineCodec(spec, CodecId::kCacheGen, shape), parameters_(parameters), layers_(int(shape.layers.size())) {}

bool CacheGenCodec::IsAnchor(int token) const { return parameters_.delta && token % kTokensPerAnchor == 0; }

int CacheGenCodec::GreatestLevel(const PageDims& dims, int token) const {
  if (IsAnchor(token)) return kAnchorLevel;
  const int fine = dims.address.kind == KvKind::kKey ? kFineKeyLayers : kFineValueLayers;
  return dims.address.layer * kConfiguredLayers < fine * layers_ ? kFineLevel : kCoarseLevel;
}

std::size_t CacheGenCodec::PageWorkBytes(const PageDims& dims) const {
  const std::size_t channels = std::size_t(dims.channels);
  return Scratch::BytesFor<float>(channels) + Scratch::BytesFor<float>(std::size_t(dims.tokens)) +
         Scratch::BytesFor<std::uint8_t>(dims.elements()) + Scratch::BytesFor<std::uint32_t>(channels * kCdfEntries) +
         AdaptiveModel::WorkBytes(dims.channels, 2 * kAnchorLevel + 1) +
         AdaptiveModel::WorkBytes(dims.channels, 2 * kFineLevel + 1);
}

// Steps (FP16) per token; tables per channel if asked for; then symbol by symbol, [token][channel].
void CacheGenCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams,
                          Scratch scratch) const {
  const int channels = dims.channels;
  float* anchor = scratch.Take<float>(std::size_t(channels));
  auto* symbols = scratch.Take<std::uint8_t>(dims.elements());
  std::fill_n(anchor, channels, 0.0f);
  for (int token = 0; token < dims.tokens; ++token) {
    const float* row = values + std::size_t(token) * channels;
    if (IsAnchor(token)) std::fill_n(anchor, channels, 0.0f);
    const int greatest = GreatestLevel(dims, token);
    float magnitude = 0.0f;
    for (int c = 0; c < channels; ++c) magnitude = std::max(magnitude, std::fabs(row[c] - anchor[c]));
    const float step = PutF16(F16Up(magnitude / float(greatest)), &streams[0]);
    for (int c = 0; c < channels; ++c) {
      const int level = step > 0.0f ? std::clamp(NearestInteger((row[c] - anchor[c]) / step), -greatest, greatest) : 0;
      symbols[std::size_t(token) * channels + c] = std::uint8_t(level + greatest);
      if (IsAnchor(token)) anchor[c] = float(level) * step;
    }
  }
  const int delta_symbols = 2 * GreatestLevel(dims, 1) + 1;
  std::uint32_t* cdfs = nullptr;
  if (parameters_.cdf) {
    cdfs = scratch.Take<std::uint32_t>(std::size_t(channels) * kCdfEntries);
    for (int c = 0; c < channels; ++c) {
      std::uint32_t counts[kCdfEntries] = {};
      for (int token = 0; token < dims.tokens; ++token) {
        if (!IsAnchor(token)) ++counts[symbols[std::size_t(token) * channels + c]];
      }
      MakeCdf(counts, delta_symbols, cdfs + c * kCdfEntries);
      for (int s = 0; s < kCdfEntries; ++s) streams[0].Put(cdfs[c * kCdfEntries + s], 16);
    }
  }
  AdaptiveModel anchors(channels, 2 * kAnchorLevel + 1, &scratch);
  DeltaCoder deltas(cdfs, channels, delta_symbols, &scratch);
  RangeEncoder coder(&streams[0]);
  for (int token = 0; token < dims.tokens; ++token) {
    for (int c = 0; c < channels; ++c) {
      const int symbol = symbols[std::size_t(token) * channels + c];
      IsAnchor(token) ? anchors.Put(c, symbol, &coder) : deltas.Put(c, symbol, &coder);
    }
  }
  coder.Finish();
}

bool CacheGenCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const {
  const int channels = dims.channels;
  float* anchor = scratch.Take<float>(std::size_t(channels));
  float* steps = scratch.Take<float>(std::size_t(dims.tokens));
  for (int token = 0; token < dims.tokens; ++token) steps[token] = GetF16(&streams[0]);
  const int delta_symbols = 2 * GreatestLevel(dims, 1) + 1;
  std::uint32_t* cdfs = nullptr;
  if (parameters_.cdf) {
    cdfs = scratch.Take<std::uint32_t>(std::size_t(channels) * kCdfEntries);
    for (int c = 0; c < channels; ++c) {
      if (!GetCdf(delta_symbols, &streams[0], cdfs + c * kCdfEntries)) return false;
    }
  }
  AdaptiveModel anchors(channels, 2 * kAnchorLevel + 1, &scratch);
  DeltaCoder deltas(cdfs, channels, delta_symbols, &scratch);
  RangeDecoder coder(&streams[0]);
  std::fill_n(anchor, channels, 0.0f);
  for (int token = 0; token < dims.tokens; ++token) {
    float* row = values + std::size_t(token) * channels;
    const int greatest = GreatestLevel(dims, token);
    for (int c = 0; c < channels; ++c) {
      const int symbol = IsAnchor(token) ? anchors.Get(c, &coder) : deltas.Get(c, &coder);
      const float level = float(symbol - greatest) * steps[token];
      row[c] = (IsAnchor(token) ? 0.0f : anchor[c]) + level;
      if (IsAnchor(token)) anchor[c] = level;
    }
  }
  return true;
}

}  // namespace lynx
