#include "eval/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/float16.h"
#include "base/status_macros.h"
#include "eval/divergence.h"
#include "eval/page_trip.h"
#include "eval/quality.h"
#include "lynx/codec.h"

namespace lynx {
namespace {

// Coarse enough that one part of 60 stands out of the noise floor (7e-5 … 2e-3 against 5e-5), fine enough that nothing
// collapses.
constexpr const char* kCodec = "lynx:anchor_bits=1.35";
// One window's KL says this much of the truth: half of what it would change is done, and at most two octaves.
constexpr double kTrust = 0.5;
constexpr double kMostOctaves = 2.0;

// Mean of (weight * error)^2 over a layer's K or V.
double WeightedError(const CacheBlock& cache, const CacheBlock& coarse, int layer, KvKind kind,
                     std::span<const LynxChannelProfile> channels) {
  const auto a = cache.Rows(layer, kind), b = coarse.Rows(layer, kind);
  const ElementType type = cache.shape().element_type;
  const std::size_t bytes = std::size_t(ElementBytes(type));
  std::vector<double> weights;
  for (const LynxChannelProfile& channel : channels) weights.push_back(std::exp2(channel.weight / 64.0));
  double sum = 0;
  for (std::size_t i = 0; i < a.size() / bytes; ++i) {
    const double error = double(LoadElement(&a[i * bytes], type)) - LoadElement(&b[i * bytes], type);
    sum += std::pow(weights[i % weights.size()] * error, 2);
  }
  return sum / double(a.size() / bytes);
}

// The cache with one layer's K or V from its anchor.
Result<CacheBlock> Coarsen(const CacheBlock& cache, int layer, KvKind kind, const Codec& codec) {
  CacheBlock coarse = cache;
  PageTrip trip(&codec);
  const CodecInfo& info = codec.info();
  for (const PageAddress& address :
       PagesOf(cache.shape(), 0, cache.token_count(), info.page_tokens, info.heads_per_page)) {
    if (address.layer != layer || address.kind != kind) continue;
    LYNX_ASSIGN_OR_RETURN(const auto streams, trip.Encode(cache, address));
    LYNX_RETURN_IF_ERROR(trip.Decode(std::span(streams).first(1), address, &coarse));
  }
  return coarse;
}

}  // namespace

Result<std::vector<double>> MeasureSensitivity(Engine* engine, SequenceId sequence, const CacheBlock& cache,
                                               std::span<const Token> next, const LynxProfile& profile,
                                               const CalibrateProgress& progress) {
  const CacheShape& shape = cache.shape();
  const Profile written = WriteLynxProfile(profile, shape);
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeCodec(kCodec, shape, &written));
  LYNX_ASSIGN_OR_RETURN(const std::vector<float> reference, TeacherForce(engine, sequence, cache, next));
  const int parts = int(profile.size());
  // Half the log2 of KL per weighted square error; none when a part is missing or nothing can be seen of it.
  std::vector<std::optional<double>> octaves(profile.size());
  double sum = 0;
  int count = 0;
  for (int part = 0; part < parts; ++part) {
    const auto& channels = profile[std::size_t(part)];
    if (progress) LYNX_RETURN_IF_ERROR(progress("measuring part", part, parts));
    if (channels.empty()) continue;
    const int layer = part / 2;
    const KvKind kind = KvKind(part % 2);
    LYNX_ASSIGN_OR_RETURN(const CacheBlock coarse, Coarsen(cache, layer, kind, *codec));
    LYNX_ASSIGN_OR_RETURN(const std::vector<float> rows, TeacherForce(engine, sequence, coarse, next));
    const double error = WeightedError(cache, coarse, layer, kind, channels);
    const double divergence = MeanDivergence(reference, rows, std::size_t(engine->info().vocab_size));
    if (!(error > 0 && divergence > 0)) continue;
    octaves[std::size_t(part)] = 0.5 * std::log2(divergence / error);
    sum += *octaves[std::size_t(part)];
    ++count;
  }
  std::vector<double> corrections;
  for (const std::optional<double>& each : octaves) {
    corrections.push_back(each ? std::clamp(kTrust * (*each - sum / count), -kMostOctaves, kMostOctaves) : 0.0);
  }
  return corrections;
}

}  // namespace lynx
