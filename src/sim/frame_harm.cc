#include "sim/frame_harm.h"

#include <algorithm>

#include "base/bytes.h"

namespace lynx {
namespace {

// Two neighbouring 16-bit words that differ change places: the sum that TCP checks stays the same. False: there are
// none.
bool SwapWords(std::size_t begin, std::size_t end, World* world, std::vector<std::byte>* bytes) {
  if (end - begin < 4) return false;
  const std::size_t words = (end - begin) / 2;
  const std::size_t first = world->random().Below(words - 1);
  for (std::size_t i = 0; i < words - 1; ++i) {
    std::byte* at = bytes->data() + begin + 2 * ((first + i) % (words - 1));
    if (LoadLittle<std::uint16_t>(at) == LoadLittle<std::uint16_t>(at + 2)) continue;
    std::swap_ranges(at, at + 2, at + 2);
    return true;
  }
  return false;
}

void FlipBit(std::size_t begin, std::size_t end, World* world, std::vector<std::byte>* bytes) {
  (*bytes)[begin + world->random().Below(end - begin)] ^= std::byte(1 << world->random().Below(8));
}

// An old frame that could stand for this one comes ahead of it. False: there is none.
bool Replay(const FrameInPlace& frame, std::span<const std::byte> old, std::size_t at, std::vector<std::byte>* bytes) {
  while (!old.empty()) {
    const FrameInPlace candidate = FrameAt(old);
    const bool fits = candidate.type == frame.type && candidate.request == frame.request &&
                      candidate.stream == frame.stream && candidate.part == frame.part;
    if (fits && frame.type != FrameType::kHello) {
      bytes->insert(bytes->begin() + std::ptrdiff_t(at), old.begin(), old.begin() + std::ptrdiff_t(candidate.bytes));
      return true;
    }
    old = old.subspan(candidate.bytes);
  }
  return false;
}

bool HarmFrame(const FrameHarm& harm, std::size_t begin, std::size_t end, World* world, std::vector<std::byte>* bytes) {
  const auto first = bytes->begin() + std::ptrdiff_t(begin), last = bytes->begin() + std::ptrdiff_t(end);
  switch (harm.kind) {
    case Seen::kHeaderFlip:
      FlipBit(begin, begin + kFrameHeaderBytes, world, bytes);
      return true;
    case Seen::kBitFlip:
      if (begin + kFrameHeaderBytes == end) return false;
      FlipBit(begin + kFrameHeaderBytes, end, world, bytes);
      return true;
    case Seen::kWordSwap:
      return SwapWords(begin + kFrameHeaderBytes, end, world, bytes);
    case Seen::kFrameDropped:
      bytes->erase(first, last);
      return true;
    case Seen::kFrameDoubled: {
      const std::vector<std::byte> frame(first, last);
      bytes->insert(last, frame.begin(), frame.end());
      return true;
    }
    default:
      return Replay(FrameAt({first, last}), harm.replay, begin, bytes);
  }
}

}  // namespace

FrameInPlace FrameAt(std::span<const std::byte> bytes) {
  FrameInPlace frame;
  frame.type = FrameType(LoadLittle<std::uint8_t>(&bytes[5]));
  frame.stream = LoadLittle<std::uint8_t>(&bytes[7]);
  frame.request = LoadLittle<std::uint64_t>(&bytes[8]);
  frame.part = LoadLittle<std::uint16_t>(&bytes[16]);
  frame.payload = bytes.subspan(kFrameHeaderBytes, LoadLittle<std::uint32_t>(&bytes[24]));
  frame.bytes = kFrameHeaderBytes + frame.payload.size();
  return frame;
}

void ForEachFrame(std::span<const std::byte> frames,
                  const std::function<void(const FrameInPlace& frame, std::span<const std::byte> bytes)>& each) {
  while (!frames.empty()) {
    const FrameInPlace frame = FrameAt(frames);
    each(frame, frames.first(frame.bytes));
    frames = frames.subspan(frame.bytes);
  }
}

bool DoHarm(FrameHarm* harm, World* world, std::vector<std::byte>* frames) {
  for (std::size_t at = 0; at < frames->size();) {
    const FrameInPlace frame = FrameAt(std::span(*frames).subspan(at));
    const bool fits = !harm->pages_only || frame.type == FrameType::kPage;
    if (fits && harm->frames_before-- <= 0 && HarmFrame(*harm, at, at + frame.bytes, world, frames)) return true;
    at += frame.bytes;
  }
  return false;
}

}  // namespace lynx
