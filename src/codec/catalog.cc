#include "codec/catalog.h"

#include <algorithm>
#include <span>
#include <string>

#include "base/status_macros.h"
#include "codec/codec_spec.h"
#include "codec/integer_codec.h"
#include "codec/lynx_codec.h"
#include "codec/nested_codec.h"
#include "codec/paper_codec.h"
#include "codec/raw_codec.h"

namespace lynx {
namespace {

// More than 256 channels would be what one step per token is for.
constexpr CodecParameter kIntegerParameters[] = {{"group", 0, 256, 0, true, true}};
constexpr CodecParameter kPaperParameters[] = {{"alpha", 0.01, 1e6, 100}};
constexpr CodecParameter kNestedParameters[] = {
    {"anchor", 3, 6, 4, true}, {"recent", 0, 255, 64, true}, {"unrope", 0, 1, 0, true}};
constexpr CodecParameter kLynxParameters[] = {{"anchor_bits", 1.2, 4.5, 2.25},
                                              {"recent", 0, 255, 64, true},
                                              {"streams", 2, 3, 2, true},
                                              {"unrope", 0, 1, 1, true},
                                              {"exact", 0, 1, 0, true, true}};

using Values = std::span<const double>;  // one per parameter
using Made = Result<std::unique_ptr<Codec>>;
using Maker = Made (*)(const std::string& spec, Values values, const CacheShape& shape, const CodecKernels& kernels,
                       const LynxProfile* profile);

struct Entry {
  std::string_view name;
  std::span<const CodecParameter> parameters;
  Maker make;
};

Made MakeRaw(const std::string&, Values, const CacheShape& shape, const CodecKernels&, const LynxProfile*) {
  return Made(std::make_unique<RawCodec>(shape));
}

template <int bits>
Made MakeInteger(const std::string& spec, Values values, const CacheShape& shape, const CodecKernels& kernels,
                 const LynxProfile*) {
  return Made(std::make_unique<IntegerCodec>(shape, kernels, bits, int(values[0]), spec));
}

template <PaperReading reading>
Made MakePaper(const std::string& spec, Values values, const CacheShape& shape, const CodecKernels&,
               const LynxProfile*) {
  return Made(std::make_unique<PaperCodec>(shape, reading, values[0], spec));
}

Made MakeNested(const std::string& spec, Values values, const CacheShape& shape, const CodecKernels& kernels,
                const LynxProfile*) {
  NestedParameters parameters;
  parameters.anchor_bits = int(values[0]);
  parameters.recent = int(values[1]);
  parameters.unrope = values[2] != 0;
  return Made(std::make_unique<NestedCodec>(shape, kernels, parameters, spec));
}

Made MakeLynx(const std::string& spec, Values values, const CacheShape& shape, const CodecKernels& kernels,
              const LynxProfile* profile) {
  LynxParameters parameters;
  parameters.anchor_bits = values[0];
  parameters.recent = int(values[1]);
  parameters.streams = int(values[2]);
  parameters.unrope = values[3] != 0;
  parameters.exact = values[4] != 0;
  if (parameters.exact && shape.element_type != ElementType::kBf16) {
    return Invalid("codec lynx: exact=1 needs a BF16 cache; leave it out");
  }
  return Made(std::make_unique<LynxCodec>(shape, *kernels.lynx, parameters, spec, profile));
}

constexpr Entry kCatalog[] = {
    {"raw", {}, MakeRaw},
    {"int8", kIntegerParameters, MakeInteger<8>},
    {"int4", kIntegerParameters, MakeInteger<4>},
    {"paper", kPaperParameters, MakePaper<PaperReading::k120>},
    {"paper127", kPaperParameters, MakePaper<PaperReading::k127>},
    {"nested", kNestedParameters, MakeNested},
    {"lynx", kLynxParameters, MakeLynx},
};

}  // namespace

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kCatalog) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<Codec>> MakeCodecWith(const CodecKernels& kernels, std::string_view spec,
                                             const CacheShape& shape, const Profile* profile) {
  const std::string_view name = CodecNameOf(spec);
  const auto entry =
      std::find_if(std::begin(kCatalog), std::end(kCatalog), [name](const Entry& known) { return known.name == name; });
  if (entry == std::end(kCatalog)) {
    return Unsupported("no codec \"" + std::string(name) + "\", there are " + ListOf(CodecNames()));
  }
  LYNX_RETURN_IF_ERROR(CheckCacheShape(shape));
  LYNX_ASSIGN_OR_RETURN(const CodecSpec read, ReadCodecSpec(spec, entry->parameters));
  LynxProfile channels;
  if (profile != nullptr) {
    LYNX_ASSIGN_OR_RETURN(channels, ReadLynxProfile(*profile, shape));
  }
  return entry->make(read.canonical, read.values, shape, kernels, profile != nullptr ? &channels : nullptr);
}

Result<std::unique_ptr<Codec>> MakeCodec(std::string_view spec, const CacheShape& shape, const Profile* profile) {
  return MakeCodecWith(SimdKernels(), spec, shape, profile);
}

}  // namespace lynx
