#include "codec/codec_spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/status_macros.h"

namespace lynx {
namespace {

using Parameters = std::span<const CodecParameter>;

std::string NumberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

std::string ParameterNames(Parameters parameters) {
  if (parameters.empty()) return "it has no parameters";
  std::vector<std::string> names;
  for (const CodecParameter& parameter : parameters) names.emplace_back(parameter.name);
  return "it has " + ListOf(names);
}

// Reads one "name=value" into its place, which holds NaN until then.
Status ReadParameter(std::string_view codec, Parameters parameters, std::string_view text, std::span<double> values) {
  const std::string where = "codec " + std::string(codec) + ": ";
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const auto parameter = std::find_if(parameters.begin(), parameters.end(),
                                      [name](const CodecParameter& known) { return known.name == name; });
  if (parameter == parameters.end()) {
    return Invalid(where + "no parameter \"" + std::string(name) + "\", " + ParameterNames(parameters));
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
  double& place = values[std::size_t(parameter - parameters.begin())];
  if (!std::isnan(place)) return Invalid(where + std::string(name) + " is given twice");
  place = value + 0.0;  // -0 is 0
  return Ok();
}

std::string CanonicalSpec(std::string_view codec, Parameters parameters, std::span<const double> values) {
  std::string spec(codec);
  char separator = ':';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (parameters[i].unsaid && values[i] == parameters[i].standard) continue;
    spec += separator + std::string(parameters[i].name) + "=" + NumberText(values[i]);
    separator = ',';
  }
  return spec;
}

}  // namespace

std::string_view CodecNameOf(std::string_view spec) { return spec.substr(0, spec.find(':')); }

std::string ListOf(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Result<CodecSpec> ReadCodecSpec(std::string_view spec, Parameters parameters) {
  const std::string_view codec = CodecNameOf(spec);
  CodecSpec read;
  read.values.assign(parameters.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t at = spec.find(':'); at != std::string_view::npos;) {
    const std::size_t end = spec.find(',', at + 1);
    LYNX_RETURN_IF_ERROR(ReadParameter(codec, parameters, spec.substr(at + 1, end - at - 1), read.values));
    at = end;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (std::isnan(read.values[i])) read.values[i] = parameters[i].standard;
  }
  read.canonical = CanonicalSpec(codec, parameters, read.values);
  return read;
}

}  // namespace lynx
