// One page through a codec: what the yardstick and calibration do with a cache, page by page.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lynx/codec.h"
#include "lynx/page.h"

namespace lynx {

class PageTrip {
 public:
  // The codec must outlive it.
  explicit PageTrip(const Codec* codec) : codec_(codec) {}

  // All streams of a page of the block, which ends where the prompt ends.
  Result<std::vector<std::vector<std::byte>>> Encode(const CacheBlock& block, const PageAddress& address);
  // The page from the first streams.
  Status Decode(std::span<const std::vector<std::byte>> streams, const PageAddress& address, CacheBlock* block);

  // Spent inside the codec so far.
  double encode_s() const { return encode_s_; }
  double decode_s() const { return decode_s_; }

 private:
  const Codec* codec_;
  std::vector<std::byte> scratch_;
  std::vector<std::vector<std::byte>> outputs_;
  double encode_s_ = 0, decode_s_ = 0;
};

}  // namespace lynx
