// What two nodes must share before a byte of cache may cross between them, as HELLO's layout fields.
#pragma once

#include <cstdint>
#include <vector>

#include "lynx/codec.h"
#include "lynx/engine.h"
#include "lynx/transfer.h"

namespace lynx {

// model, revision, dtype, layers, heads, head_dim, rope, page, byte_order, format: in this order. Per-layer values are
// run-length text ("64x30", "256x5,512x1").
std::vector<LayoutField> LayoutOf(const EngineInfo& engine);

// The most that the page streams of `tokens` tokens from `first_token` on can take, per stream: what a prefill node
// offers and a decode node takes.
std::vector<std::uint64_t> MostStreamBytes(const Codec& codec, const CacheShape& shape, int first_token, int tokens);

}  // namespace lynx
