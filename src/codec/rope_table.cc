#include "codec/rope_table.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/portable_math.h"

namespace lynx {
namespace {

constexpr float kMaxRadians = 4096.0f;  // times 256 tokens: the range of PortableSinCos

}  // namespace

Status CheckRope(const RopeShape& rope, int head_dim) {
  if (rope.pairing == RopePairing::kNone) return Ok();
  if (rope.pairing != RopePairing::kNorm && rope.pairing != RopePairing::kNeox) return Invalid("RoPE: unknown pairing");
  if (rope.dims <= 0 || rope.dims % 2 != 0 || rope.offset < 0 || rope.dims > head_dim ||
      rope.offset > head_dim - rope.dims) {
    return Invalid("RoPE: " + std::to_string(rope.dims) + " channels from " + std::to_string(rope.offset) +
                   " do not fit a head of " + std::to_string(head_dim));
  }
  if (rope.radians_per_token.size() != std::size_t(rope.dims) / 2)
    return Invalid("RoPE: one frequency per pair, please");
  for (float radians : rope.radians_per_token) {
    if (!(std::fabs(radians) <= kMaxRadians)) return Invalid("RoPE: a frequency is out of range");
  }
  return Ok();
}

RopeTable::RopeTable(const RopeShape& rope, int tokens)
    : pairs_(rope.dims / 2), adjacent_(rope.pairing == RopePairing::kNorm), offset_(rope.offset) {
  for (int token = 0; token < tokens; ++token) {
    for (float radians : rope.radians_per_token) {
      double sine, cosine;
      PortableSinCos(double(token) * double(radians), &sine, &cosine);
      cosines_.push_back(float(cosine));
      sines_.push_back(float(sine));
    }
  }
}

RopeTables::RopeTables(const CacheShape& shape, int tokens) {
  std::vector<const RopeShape*> known;
  for (const LayerShape& layer : shape.layers) {
    if (layer.rope.pairing == RopePairing::kNone) {
      of_layer_.push_back(-1);
      continue;
    }
    const auto same =
        std::find_if(known.begin(), known.end(), [&](const RopeShape* rope) { return *rope == layer.rope; });
    of_layer_.push_back(int(same - known.begin()));
    if (same != known.end()) continue;
    known.push_back(&layer.rope);
    tables_.emplace_back(layer.rope, tokens);
  }
}

const RopeTable* RopeTables::Of(const PageAddress& address) const {
  const int table = of_layer_[std::size_t(address.layer)];
  return address.kind == KvKind::kKey && table >= 0 ? &tables_[std::size_t(table)] : nullptr;
}

}  // namespace lynx
