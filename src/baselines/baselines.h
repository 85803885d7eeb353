// Codecs of others, rebuilt for comparison: `lynx eval quality` measures them beside our own, on the same cache, with
// every byte counted. They have page streams like any codec, but no node sends or accepts them, and their payloads are
// no published format. docs/baselines.md says of each where it comes from and what is simplified.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/codec.h"

namespace lynx {

// Builds a baseline from "name" or "name:parameter=value,…". Errors like MakeCodec's.
Result<std::unique_ptr<Codec>> MakeBaseline(std::string_view spec, const CacheShape& shape);

// Names that MakeBaseline knows, in the order of docs/baselines.md.
std::vector<std::string> BaselineNames();

// Whether a spec begins with one of them.
bool IsBaseline(std::string_view spec);

}  // namespace lynx
