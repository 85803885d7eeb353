#include "codec/catalog.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "codec/integer_codec.h"
#include "codec/lynx_codec.h"
#include "codec/nested_codec.h"
#include "codec/paper_codec.h"
#include "codec/raw_codec.h"

namespace lynx {
namespace {

// A number that a codec can be built with. Order, defaults and names are part of the canonical spec.
struct Parameter {
  std::string_view name;
  double least;
  double greatest;
  double standard;
  bool integer = false;
};

constexpr Parameter kPaperParameters[] = {{"alpha", 0.01, 1e6, 100}};
constexpr Parameter kNestedParameters[] = {
    {"anchor", 3, 6, 4, true}, {"recent", 0, 255, 64, true}, {"unrope", 0, 1, 0, true}};
constexpr Parameter kLynxParameters[] = {{"anchor_bits", 1.2, 4.5, 2.25},
                                         {"recent", 0, 255, 64, true},
                                         {"streams", 2, 3, 2, true},
                                         {"unrope", 0, 1, 1, true}};

using Values = std::span<const double>;  // one per parameter
using Maker = std::unique_ptr<Codec> (*)(const std::string& spec, Values values, const CacheShape& shape,
                                         const CodecKernels& kernels, const LynxProfile* profile);

struct Entry {
  std::string_view name;
  std::span<const Parameter> parameters;
  Maker make;
};

std::unique_ptr<Codec> MakeRaw(const std::string&, Values, const CacheShape& shape, const CodecKernels&,
                               const LynxProfile*) {
  return std::make_unique<RawCodec>(shape);
}

template <int bits>
std::unique_ptr<Codec> MakeInteger(const std::string&, Values, const CacheShape& shape, const CodecKernels& kernels,
                                   const LynxProfile*) {
  return std::make_unique<IntegerCodec>(shape, kernels, bits);
}

template <PaperReading reading>
std::unique_ptr<Codec> MakePaper(const std::string& spec, Values values, const CacheShape& shape, const CodecKernels&,
                                 const LynxProfile*) {
  return std::make_unique<PaperCodec>(shape, reading, values[0], spec);
}

std::unique_ptr<Codec> MakeNested(const std::string& spec, Values values, const CacheShape& shape,
                                  const CodecKernels& kernels, const LynxProfile*) {
  NestedParameters parameters;
  parameters.anchor_bits = int(values[0]);
  parameters.recent = int(values[1]);
  parameters.unrope = values[2] != 0;
  return std::make_unique<NestedCodec>(shape, kernels, parameters, spec);
}

const LynxKernels& LynxKernelsOf(const CodecKernels& kernels) {
  return &kernels == &ReferenceKernels() ? ReferenceLynxKernels() : SimdLynxKernels();
}

std::unique_ptr<Codec> MakeLynx(const std::string& spec, Values values, const CacheShape& shape,
                                const CodecKernels& kernels, const LynxProfile* profile) {
  LynxParameters parameters;
  parameters.anchor_bits = values[0];
  parameters.recent = int(values[1]);
  parameters.streams = int(values[2]);
  parameters.unrope = values[3] != 0;
  return std::make_unique<LynxCodec>(shape, LynxKernelsOf(kernels), parameters, spec, profile);
}

constexpr Entry kCatalog[] = {
    {"raw", {}, MakeRaw},
    {"int8", {}, MakeInteger<8>},
    {"int4", {}, MakeInteger<4>},
    {"paper", kPaperParameters, MakePaper<PaperReading::k120>},
    {"paper127", kPaperParameters, MakePaper<PaperReading::k127>},
    {"nested", kNestedParameters, MakeNested},
    {"lynx", kLynxParameters, MakeLynx},
};
constexpr std::size_t kMaxParameters = 4;

std::string NumberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::string ParameterNames(const Entry& entry) {
  if (entry.parameters.empty()) return "it has no parameters";
  std::string names;
  for (const Parameter& parameter : entry.parameters) {
    names += names.empty() ? "it has " : ", ";
    names += parameter.name;
  }
  return names;
}

// Reads one "name=value" into its place.
Status ReadParameter(const Entry& entry, std::string_view text, std::span<double> values) {
  const std::string where = "codec " + std::string(entry.name) + ": ";
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const auto parameter = std::find_if(entry.parameters.begin(), entry.parameters.end(),
                                      [name](const Parameter& known) { return known.name == name; });
  if (parameter == entry.parameters.end()) {
    return Invalid(where + "no parameter \"" + std::string(name) + "\", " + ParameterNames(entry));
  }
  const std::string_view number = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  double value = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != number.data() + number.size() ||
      !(value >= parameter->least && value <= parameter->greatest) ||
      (parameter->integer && value != double(int(value)))) {
    return Invalid(where + std::string(name) + " must be " + (parameter->integer ? "an integer" : "a number") +
                   " from " + NumberText(parameter->least) + " to " + NumberText(parameter->greatest) + ", not \"" +
                   std::string(number) + "\"");
  }
  values[parameter - entry.parameters.begin()] = value;
  return Ok();
}

// "name:parameter=value,…" with every parameter.
std::string CanonicalSpec(const Entry& entry, Values values) {
  std::string spec(entry.name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    spec += i == 0 ? ":" : ",";
    spec += std::string(entry.parameters[i].name) + "=" + NumberText(values[i]);
  }
  return spec;
}

}  // namespace

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kCatalog) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<Codec>> MakeCodecWith(const CodecKernels& kernels, std::string_view spec,
                                             const CacheShape& shape, const Profile* profile) {
  const std::size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  const auto entry =
      std::find_if(std::begin(kCatalog), std::end(kCatalog), [name](const Entry& known) { return known.name == name; });
  if (entry == std::end(kCatalog)) {
    std::string known;
    for (const std::string& each : CodecNames()) known += (known.empty() ? "" : ", ") + each;
    return Unsupported("no codec \"" + std::string(name) + "\", there are " + known);
  }
  LYNX_RETURN_IF_ERROR(CheckCacheShape(shape));
  double values[kMaxParameters];
  for (std::size_t i = 0; i < entry->parameters.size(); ++i) values[i] = entry->parameters[i].standard;
  for (std::size_t at = colon; at != std::string_view::npos;) {
    const std::size_t end = spec.find(',', at + 1);
    LYNX_RETURN_IF_ERROR(ReadParameter(*entry, spec.substr(at + 1, end - at - 1), values));
    at = end;
  }
  const Values read(values, entry->parameters.size());
  LynxProfile channels;
  if (profile != nullptr) {
    LYNX_ASSIGN_OR_RETURN(channels, ReadLynxProfile(*profile, shape));
  }
  return entry->make(CanonicalSpec(*entry, read), read, shape, kernels, profile != nullptr ? &channels : nullptr);
}

Result<std::unique_ptr<Codec>> MakeCodec(std::string_view spec, const CacheShape& shape, const Profile* profile) {
  return MakeCodecWith(SimdKernels(), spec, shape, profile);
}

}  // namespace lynx
