// The one table from names to codecs, behind MakeCodec; tests choose the kernels.
#pragma once

#include <memory>
#include <string_view>

#include "codec/kernels.h"
#include "lynx/codec.h"

namespace lynx {

// MakeCodec with these kernels.
Result<std::unique_ptr<Codec>> MakeCodecWith(const CodecKernels& kernels, std::string_view spec,
                                             const CacheShape& shape, const Profile* profile = nullptr);

}  // namespace lynx
