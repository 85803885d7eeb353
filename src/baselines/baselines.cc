#include "baselines/baselines.h"

#include "baselines/cachegen_codec.h"
#include "baselines/fp8_codec.h"
#include "baselines/grouped_codec.h"
#include "baselines/kvquant_codec.h"
#include "baselines/paper_ablation_codec.h"
#include "baselines/splitzip_codec.h"
#include "baselines/turboquant_codec.h"
#include "codec/catalog.h"

namespace lynx {
namespace {

// Names, bounds and defaults; docs/baselines.md explains them.
constexpr CodecParameter kFp8Parameters[] = {{"scale", 0, 2, 1, true}};
constexpr CodecParameter kKiviParameters[] = {
    {"bits", 2, 8, 4, true}, {"group", 8, 256, 32, true}, {"window", 0, 1024, 128, true}};
constexpr CodecParameter kKvQuantParameters[] = {{"bits", 2, 4, 3, true}, {"outliers", 0, 0.1, 0.01}};
constexpr CodecParameter kQuantSpecParameters[] = {{"group", 8, 256, 128, true}, {"buffer", 0, 1, 1, true}};
constexpr CodecParameter kCacheGenParameters[] = {{"delta", 0, 1, 1, true}, {"cdf", 0, 1, 0, true}};
constexpr CodecParameter kTurboQuantParameters[] = {{"bits", 1, 4, 4, true}};
constexpr CodecParameter kSplitZipParameters[] = {{"entropy", 0, 1, 1, true}};
constexpr CodecParameter kPaperAblationParameters[] = {{"alpha", 0, 1e6, 100},   {"scale", 16, 127, 120, true},
                                                       {"page", 0, 1, 1, true},  {"chunk", 0, 256, 32, true},
                                                       {"split", 0, 1, 1, true}, {"coded", 0, 1, 0, true}};

template <typename Baseline, typename... Parameters>
MadeCodec Make(const CodecInputs& from, const Parameters&... parameters) {
  return MadeCodec(std::make_unique<Baseline>(from.spec, from.shape, parameters...));
}

MadeCodec MakeFp8(const CodecInputs& from) { return Make<Fp8Codec>(from, Fp8Codec::Scale(int(from.values[0]))); }
MadeCodec MakeKivi(const CodecInputs& from) {
  return Make<KiviCodec>(from, int(from.values[0]), int(from.values[1]), int(from.values[2]));
}
MadeCodec MakeKvQuant(const CodecInputs& from) { return Make<KvQuantCodec>(from, int(from.values[0]), from.values[1]); }
MadeCodec MakeQuantSpec(const CodecInputs& from) {
  return Make<QuantSpecCodec>(from, int(from.values[0]), from.values[1] != 0);
}
MadeCodec MakeCacheGen(const CodecInputs& from) {
  return Make<CacheGenCodec>(from, CacheGenParameters{from.values[0] != 0, from.values[1] != 0});
}
MadeCodec MakeTurboQuant(const CodecInputs& from) { return Make<TurboQuantCodec>(from, int(from.values[0])); }
MadeCodec MakeSplitZip(const CodecInputs& from) { return Make<SplitZipCodec>(from, from.values[0] != 0); }
MadeCodec MakePaperAblation(const CodecInputs& from) {
  const std::span<const double> values = from.values;
  return Make<PaperAblationCodec>(
      from, PaperStages{values[0], int(values[1]), values[2] != 0, int(values[3]), values[4] != 0, values[5] != 0});
}

constexpr CodecEntry kBaselines[] = {
    {"fp8", kFp8Parameters, MakeFp8},
    {"kivi", kKiviParameters, MakeKivi},
    {"kvquant", kKvQuantParameters, MakeKvQuant},
    {"quantspec", kQuantSpecParameters, MakeQuantSpec},
    {"cachegen", kCacheGenParameters, MakeCacheGen},
    {"turboquant", kTurboQuantParameters, MakeTurboQuant},
    {"splitzip", kSplitZipParameters, MakeSplitZip},
    {"paper-ablation", kPaperAblationParameters, MakePaperAblation},
};

}  // namespace

std::vector<std::string> BaselineNames() { return NamesIn(kBaselines); }

bool IsBaseline(std::string_view spec) { return FindCodec(kBaselines, spec) != nullptr; }

Result<std::unique_ptr<Codec>> MakeBaseline(std::string_view spec, const CacheShape& shape) {
  return MakeCodecFrom(kBaselines, "baseline", SimdKernels(), spec, shape);
}

}  // namespace lynx
