// What calibration learned about a model's channels: how far their values spread and how much an error in them matters.
// It steers the encoder only; steps travel with every page, so a decoder never needs it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lynx/codec.h"
#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

// Both are 64 log2 of a positive number (finer than steps, so that the rate of a whole model can be met): the mean
// distance from the page's mean (K before RoPE), and the weight w of steps delta / w.
struct LynxChannelProfile {
  std::int16_t spread = 0;
  std::int16_t weight = 0;
  bool operator==(const LynxChannelProfile&) const = default;
};

// Rows [2 * layer + kind][head * HeadDim + channel]; empty for a kind that a layer lacks.
using LynxProfile = std::vector<std::vector<LynxChannelProfile>>;

// Whether these bytes are a whole profile of this version, of whatever model. kCorrupt, kUnsupported.
Status CheckLynxProfile(const Profile& profile);

// The bytes of docs/codec.md "Profile", and back: kCorrupt when they are damaged, kInvalid when they are of another
// cache shape. The rows must fit the shape.
Profile WriteLynxProfile(const LynxProfile& profile, const CacheShape& shape);
Result<LynxProfile> ReadLynxProfile(const Profile& profile, const CacheShape& shape);

// delta as 64 log2: the one at which the average over all channels comes nearest to `bits` per value.
int LynxDeltaOf(const LynxProfile& profile, double bits);
// Step indices of one head's channels for this delta: the first, and from there on the grid of kLynxOffsetUnit, so that
// their mean is the one of delta / w.
std::vector<std::int16_t> LynxProfileSteps(std::span<const LynxChannelProfile> head, int delta);

}  // namespace lynx
