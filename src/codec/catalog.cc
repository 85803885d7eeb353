#include "codec/catalog.h"

#include <algorithm>

#include "base/status_macros.h"
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

MadeCodec MakeRaw(const CodecInputs& from) { return MadeCodec(std::make_unique<RawCodec>(from.shape)); }

template <int bits>
MadeCodec MakeInteger(const CodecInputs& from) {
  return MadeCodec(std::make_unique<IntegerCodec>(from.shape, from.kernels, bits, int(from.values[0]), from.spec));
}

template <PaperReading reading>
MadeCodec MakePaper(const CodecInputs& from) {
  return MadeCodec(std::make_unique<PaperCodec>(from.shape, reading, from.values[0], from.spec));
}

MadeCodec MakeNested(const CodecInputs& from) {
  NestedParameters parameters;
  parameters.anchor_bits = int(from.values[0]);
  parameters.recent = int(from.values[1]);
  parameters.unrope = from.values[2] != 0;
  return MadeCodec(std::make_unique<NestedCodec>(from.shape, from.kernels, parameters, from.spec));
}

MadeCodec MakeLynx(const CodecInputs& from) {
  LynxParameters parameters;
  parameters.anchor_bits = from.values[0];
  parameters.recent = int(from.values[1]);
  parameters.streams = int(from.values[2]);
  parameters.unrope = from.values[3] != 0;
  parameters.exact = from.values[4] != 0;
  if (parameters.exact && from.shape.element_type != ElementType::kBf16) {
    return Invalid("codec lynx: exact=1 needs a BF16 cache; leave it out");
  }
  return MadeCodec(std::make_unique<LynxCodec>(from.shape, *from.kernels.lynx, parameters, from.spec, from.profile));
}

constexpr CodecEntry kCatalog[] = {
    {"raw", {}, MakeRaw},
    {"int8", kIntegerParameters, MakeInteger<8>},
    {"int4", kIntegerParameters, MakeInteger<4>},
    {"paper", kPaperParameters, MakePaper<PaperReading::k120>},
    {"paper127", kPaperParameters, MakePaper<PaperReading::k127>},
    {"nested", kNestedParameters, MakeNested},
    {"lynx", kLynxParameters, MakeLynx},
};

}  // namespace

const CodecEntry* FindCodec(std::span<const CodecEntry> catalog, std::string_view spec) {
  const auto entry = std::find_if(catalog.begin(), catalog.end(),
                                  [&](const CodecEntry& known) { return known.name == CodecNameOf(spec); });
  return entry == catalog.end() ? nullptr : &*entry;
}

std::vector<std::string> NamesIn(std::span<const CodecEntry> catalog) {
  std::vector<std::string> names;
  for (const CodecEntry& entry : catalog) names.emplace_back(entry.name);
  return names;
}

MadeCodec MakeCodecFrom(std::span<const CodecEntry> catalog, std::string_view what, const CodecKernels& kernels,
                        std::string_view spec, const CacheShape& shape, const Profile* profile) {
  const CodecEntry* entry = FindCodec(catalog, spec);
  if (entry == nullptr) {
    return Unsupported("no " + std::string(what) + " \"" + std::string(CodecNameOf(spec)) + "\", there are " +
                       ListOf(NamesIn(catalog)));
  }
  LYNX_RETURN_IF_ERROR(CheckCacheShape(shape));
  LYNX_ASSIGN_OR_RETURN(const CodecSpec read, ReadCodecSpec(spec, entry->parameters));
  LynxProfile channels;
  if (profile != nullptr) {
    LYNX_ASSIGN_OR_RETURN(channels, ReadLynxProfile(*profile, shape));
  }
  return entry->make({read.canonical, read.values, shape, kernels, profile != nullptr ? &channels : nullptr});
}

MadeCodec MakeCodecWith(const CodecKernels& kernels, std::string_view spec, const CacheShape& shape,
                        const Profile* profile) {
  return MakeCodecFrom(kCatalog, "codec", kernels, spec, shape, profile);
}

MadeCodec MakeCodec(std::string_view spec, const CacheShape& shape, const Profile* profile) {
  return MakeCodecWith(SimdKernels(), spec, shape, profile);
}

std::vector<std::string> CodecNames() { return NamesIn(kCatalog); }

}  // namespace lynx
