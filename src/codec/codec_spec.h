// "name:parameter=value,…": how codecs are asked for, and the canonical spec that is part of their format
// (docs/codec.md §3).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/result.h"

namespace lynx {

// A number that a codec can be built with. Order, defaults and names are part of the canonical spec.
struct CodecParameter {
  std::string_view name;
  double least;
  double greatest;
  double standard;
  bool integer = false;
  // True: the canonical spec leaves it out where it has its default. For parameters that a codec got later: what was
  // encoded before stays readable.
  bool unsaid = false;
};

struct CodecSpec {
  std::string canonical;
  std::vector<double> values;  // one per parameter
};

// What stands before the colon.
std::string_view CodecNameOf(std::string_view spec);

// "a, b, c", for messages.
std::string ListOf(std::span<const std::string> names);

// Reads a spec of a codec that has these parameters. kInvalid names the offending one and those that exist.
Result<CodecSpec> ReadCodecSpec(std::string_view spec, std::span<const CodecParameter> parameters);

}  // namespace lynx
