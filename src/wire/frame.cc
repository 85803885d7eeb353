#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/seeded_bug.h"
#include "base/status_macros.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

constexpr std::uint8_t kCriticalFlag = 1;
constexpr std::size_t kHeaderCrcOffset = 36;

bool Known(std::uint8_t type) {
  return type >= std::uint8_t(FrameType::kHello) && type <= std::uint8_t(FrameType::kNak);
}

void StoreHeader(const FrameHeader& header, std::byte* to) {
  StoreLittle(kFrameMagic, to);
  StoreLittle(header.version, to + 4);
  StoreLittle(std::uint8_t(header.type), to + 5);
  StoreLittle(std::uint8_t(header.critical ? kCriticalFlag : 0), to + 6);
  StoreLittle(header.stream, to + 7);
  StoreLittle(header.request, to + 8);
  StoreLittle(header.part, to + 16);
  StoreLittle(std::uint16_t{0}, to + 18);
  StoreLittle(header.epoch_tag, to + 20);
  StoreLittle(header.payload_bytes, to + 24);
  StoreLittle(header.payload_crc, to + 28);
  StoreLittle(std::uint32_t{0}, to + 32);
  StoreLittle(Crc32c({to, kHeaderCrcOffset}), to + kHeaderCrcOffset);
}

// Magic first, so that a stranger is called a stranger; then the checksum, and only then any meaning.
Result<FrameHeader> LoadHeader(const std::byte* from) {
  if (LoadLittle<std::uint32_t>(from) != kFrameMagic) {
    return Corrupt("bytes are not a Lynx frame: check that the peer's address is that of a Lynx node");
  }
  if (LoadLittle<std::uint32_t>(from + kHeaderCrcOffset) != Crc32c({from, kHeaderCrcOffset})) {
    return Corrupt("frame header checksum differs");
  }
  FrameHeader header;
  header.version = LoadLittle<std::uint8_t>(from + 4);
  if (header.version < kWireVersionMin || header.version > kWireVersionMax) {
    return Unsupported("frame has wire version " + std::to_string(header.version) + ", this build speaks " +
                       std::to_string(kWireVersionMin) + " to " + std::to_string(kWireVersionMax));
  }
  const auto flags = LoadLittle<std::uint8_t>(from + 6);
  if ((flags & ~kCriticalFlag) != 0 || LoadLittle<std::uint16_t>(from + 18) != 0 ||
      LoadLittle<std::uint32_t>(from + 32) != 0) {
    return Unsupported("frame uses header fields that are reserved in this wire version");
  }
  header.type = FrameType(LoadLittle<std::uint8_t>(from + 5));
  header.critical = (flags & kCriticalFlag) != 0;
  header.stream = LoadLittle<std::uint8_t>(from + 7);
  header.request = LoadLittle<std::uint64_t>(from + 8);
  header.part = LoadLittle<std::uint16_t>(from + 16);
  header.epoch_tag = LoadLittle<std::uint32_t>(from + 20);
  header.payload_bytes = LoadLittle<std::uint32_t>(from + 24);
  header.payload_crc = LoadLittle<std::uint32_t>(from + 28);
  return header;
}

std::span<const std::byte> TakeFront(std::size_t count, std::span<const std::byte>* bytes) {
  const auto taken = bytes->first(std::min(count, bytes->size()));
  *bytes = bytes->subspan(taken.size());
  return taken;
}

}  // namespace

std::size_t BeginFrame(std::vector<std::byte>* out) {
  const std::size_t begin = out->size();
  out->resize(begin + kFrameHeaderBytes);
  return begin;
}

void EndFrame(const FrameHeader& header, std::size_t begin, std::vector<std::byte>* out) {
  const auto payload = std::span<const std::byte>(*out).subspan(begin + kFrameHeaderBytes);
  LYNX_CHECK(payload.size() <= UINT32_MAX);
  FrameHeader filled = header;
  filled.payload_bytes = std::uint32_t(payload.size());
  filled.payload_crc = Crc32c(payload);
  StoreHeader(filled, out->data() + begin);
}

void AppendFrame(const FrameHeader& header, std::span<const std::byte> payload, std::vector<std::byte>* out) {
  const std::size_t begin = BeginFrame(out);
  out->insert(out->end(), payload.begin(), payload.end());
  EndFrame(header, begin, out);
}

std::size_t MaxPayloadBytes(FrameType type, const FrameLimits& limits) {
  switch (type) {
    case FrameType::kHello:
      return kMaxHelloBytes;
    case FrameType::kRequest:
      return kMaxControlBytes + sizeof(Token) * std::size_t{limits.max_prompt_tokens};
    case FrameType::kPage:
      return limits.max_frame_bytes;
    default:
      return kMaxControlBytes;
  }
}

// A complete header is in header_bytes_: checks it and decides whether its payload is kept or skipped.
Status FrameReader::TakeHeader() {
  LYNX_ASSIGN_OR_RETURN(const FrameHeader header, LoadHeader(header_bytes_.data()));
  header_taken_ = 0;
  const auto type = std::uint8_t(header.type);
  const bool known = Known(type);
  if (!known && header.critical) {
    return Unsupported("frame type " + std::to_string(type) + " is not known here and may not be skipped");
  }
  // What is skipped may be as long as the longest frame that is read.
  const std::size_t limit =
      known ? MaxPayloadBytes(header.type, limits_) : std::max<std::size_t>(kMaxHelloBytes, limits_.max_frame_bytes);
  if (header.payload_bytes > limit) {
    return LimitExceeded("frame of type " + std::to_string(type) + " announces " +
                         std::to_string(header.payload_bytes) + " bytes, the limit is " + std::to_string(limit));
  }
  if (known) {
    header_ = header;
  } else {
    skip_ = header.payload_bytes;
  }
  return Ok();
}

Result<std::optional<FrameView>> FrameReader::Next(std::span<const std::byte>* bytes) {
  if (std::exchange(delivered_, false)) payload_.clear();
  while (!header_) {
    skip_ -= TakeFront(skip_, bytes).size();
    const auto taken = TakeFront(skip_ > 0 ? 0 : kFrameHeaderBytes - header_taken_, bytes);
    std::copy(taken.begin(), taken.end(), header_bytes_.begin() + std::ptrdiff_t(header_taken_));
    header_taken_ += taken.size();
    if (header_taken_ < kFrameHeaderBytes) return std::optional<FrameView>();
    LYNX_RETURN_IF_ERROR(TakeHeader());
  }
  // A payload that lies whole in the caller's bytes is not copied.
  std::span<const std::byte> payload;
  if (payload_.empty() && bytes->size() >= header_->payload_bytes) {
    payload = TakeFront(header_->payload_bytes, bytes);
  } else {
    payload_.reserve(header_->payload_bytes);
    const auto taken = TakeFront(header_->payload_bytes - payload_.size(), bytes);
    payload_.insert(payload_.end(), taken.begin(), taken.end());
    if (payload_.size() < header_->payload_bytes) return std::optional<FrameView>();
    payload = payload_;
    delivered_ = true;
  }
  const FrameHeader header = *std::exchange(header_, std::nullopt);
  const bool payload_ok = kSeededBug == SeededBug::kNoChecksum || Crc32c(payload) == header.payload_crc;
  return std::optional(FrameView{header, payload, payload_ok});
}

}  // namespace lynx
