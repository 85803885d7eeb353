// What an evil network does to whole frames on their way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lynx/wire.h"
#include "sim/world.h"

namespace lynx {

// The fields of a frame that lies whole at the front of `bytes`, by the offsets of docs/wire.md; nothing is checked.
struct FrameInPlace {
  FrameType type;
  int stream;
  int part;
  std::uint64_t request;
  std::size_t bytes;  // header and payload
  std::span<const std::byte> payload;
};
FrameInPlace FrameAt(std::span<const std::byte> bytes);
// Calls `each` for every frame; `frames` holds whole frames only.
void ForEachFrame(std::span<const std::byte> frames,
                  const std::function<void(const FrameInPlace& frame, std::span<const std::byte> bytes)>& each);

// Harm that is done once to one frame of a direction.
struct FrameHarm {
  Seen kind = Seen::kBitFlip;  // kBitFlip, kHeaderFlip, kWordSwap, kFrameDropped, kFrameDoubled, kFrameReplayed
  int frames_before = 0;       // that pass first, of those that it can hit
  bool pages_only = false;
  std::vector<std::byte> replay;  // frames of an earlier connection
};

// Applies the harm if its frame is among `frames`. True: done.
bool DoHarm(FrameHarm* harm, World* world, std::vector<std::byte>* frames);

}  // namespace lynx
