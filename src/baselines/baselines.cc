#include "baselines/baselines.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/status_macros.h"
#include "baselines/cachegen_codec.h"
#include "baselines/fp8_codec.h"
#include "baselines/grouped_codec.h"
#include "baselines/kvquant_codec.h"
#include "baselines/paper_ablation_codec.h"
#include "baselines/splitzip_codec.h"
#include "baselines/turboquant_codec.h"
#include "codec/codec_spec.h"

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

using Made = std::unique_ptr<Codec>;
using Values = std::span<const double>;  // one per parameter

struct Entry {
  std::string_view name;
  std::span<const CodecParameter> parameters;
  Made (*make)(const std::string& spec, const CacheShape& shape, Values values);
};

Made MakeFp8(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<Fp8Codec>(spec, shape, Fp8Codec::Scale(int(values[0])));
}
Made MakeKivi(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<KiviCodec>(spec, shape, int(values[0]), int(values[1]), int(values[2]));
}
Made MakeKvQuant(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<KvQuantCodec>(spec, shape, int(values[0]), values[1]);
}
Made MakeQuantSpec(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<QuantSpecCodec>(spec, shape, int(values[0]), values[1] != 0);
}
Made MakeCacheGen(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<CacheGenCodec>(spec, shape, CacheGenParameters{values[0] != 0, values[1] != 0});
}
Made MakeTurboQuant(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<TurboQuantCodec>(spec, shape, int(values[0]));
}
Made MakeSplitZip(const std::string& spec, const CacheShape& shape, Values values) {
  return std::make_unique<SplitZipCodec>(spec, shape, values[0] != 0);
}
Made MakePaperAblation(const std::string& spec, const CacheShape& shape, Values values) {
  const PaperStages stages{values[0], int(values[1]), values[2] != 0, int(values[3]), values[4] != 0, values[5] != 0};
  return std::make_unique<PaperAblationCodec>(spec, shape, stages);
}

constexpr Entry kBaselines[] = {
    {"fp8", kFp8Parameters, MakeFp8},
    {"kivi", kKiviParameters, MakeKivi},
    {"kvquant", kKvQuantParameters, MakeKvQuant},
    {"quantspec", kQuantSpecParameters, MakeQuantSpec},
    {"cachegen", kCacheGenParameters, MakeCacheGen},
    {"turboquant", kTurboQuantParameters, MakeTurboQuant},
    {"splitzip", kSplitZipParameters, MakeSplitZip},
    {"paper-ablation", kPaperAblationParameters, MakePaperAblation},
};

const Entry* Find(std::string_view spec) {
  const auto entry = std::find_if(std::begin(kBaselines), std::end(kBaselines),
                                  [&](const Entry& known) { return known.name == CodecNameOf(spec); });
  return entry == std::end(kBaselines) ? nullptr : entry;
}

}  // namespace

std::vector<std::string> BaselineNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kBaselines) names.emplace_back(entry.name);
  return names;
}

bool IsBaseline(std::string_view spec) { return Find(spec) != nullptr; }

Result<std::unique_ptr<Codec>> MakeBaseline(std::string_view spec, const CacheShape& shape) {
  const Entry* entry = Find(spec);
  if (entry == nullptr) {
    return Unsupported("no baseline \"" + std::string(CodecNameOf(spec)) + "\", there are " + ListOf(BaselineNames()));
  }
  LYNX_RETURN_IF_ERROR(CheckCacheShape(shape));
  LYNX_ASSIGN_OR_RETURN(const CodecSpec read, ReadCodecSpec(spec, entry->parameters));
  return entry->make(read.canonical, shape, read.values);
}

}  // namespace lynx
