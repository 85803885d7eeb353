// Tables from names to codecs, and the one behind MakeCodec; tests choose the kernels.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec_spec.h"
#include "codec/kernels.h"
#include "codec/lynx_profile.h"
#include "lynx/codec.h"

namespace lynx {

using MadeCodec = Result<std::unique_ptr<Codec>>;

// What a codec is made from.
struct CodecInputs {
  const std::string& spec;         // canonical
  std::span<const double> values;  // one per parameter
  const CacheShape& shape;
  const CodecKernels& kernels;
  const LynxProfile* profile;  // null: none
};

struct CodecEntry {
  std::string_view name;
  std::span<const CodecParameter> parameters;
  MadeCodec (*make)(const CodecInputs& from);
};

// The entry of the name that the spec begins with; null when there is none.
const CodecEntry* FindCodec(std::span<const CodecEntry> catalog, std::string_view spec);
std::vector<std::string> NamesIn(std::span<const CodecEntry> catalog);
// MakeCodec from this catalog of `what`, the word for its codecs in messages.
MadeCodec MakeCodecFrom(std::span<const CodecEntry> catalog, std::string_view what, const CodecKernels& kernels,
                        std::string_view spec, const CacheShape& shape, const Profile* profile = nullptr);

// MakeCodec with these kernels.
MadeCodec MakeCodecWith(const CodecKernels& kernels, std::string_view spec, const CacheShape& shape,
                        const Profile* profile = nullptr);

}  // namespace lynx
