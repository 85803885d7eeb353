// What a peer sends before anything is believed: frames cut anywhere are the same frames, and a payload that is read
// is read again from its own encoding.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

using Bytes = std::span<const std::byte>;

template <typename T, typename Parse>
void CheckPayload(Bytes payload, Parse parse) {
  const Result<T> read = parse(payload);
  if (!read.ok()) {
    LYNX_CHECK(!read.status().message().empty());
    return;
  }
  std::vector<std::byte> once, twice;
  Encode(*read, &once);
  const Result<T> again = parse(once);
  LYNX_CHECK(again.ok());
  Encode(*again, &twice);
  LYNX_CHECK(once == twice);
}

void CheckPage(Bytes payload) {
  Bytes bytes;
  const auto fragment = ParsePage(payload, &bytes);
  if (!fragment.ok()) return;
  LYNX_CHECK(!bytes.empty() && std::uint64_t(fragment->offset) + bytes.size() <= fragment->total);
  std::vector<std::byte> head;
  Encode(*fragment, &head);
  LYNX_CHECK(std::equal(head.begin(), head.end(), payload.begin()) && head.size() + bytes.size() == payload.size());
}

void CheckStatus(Bytes payload) {
  Status status;
  if (!ParseStatus(payload, &status).ok()) return;
  LYNX_CHECK(!status.ok() && status.message().find('\n') == std::string::npos);
  LYNX_CHECK(status.message().size() <= kMaxMessageBytes);
}

void CheckPayloadOf(FrameType type, Bytes payload) {
  switch (type) {
    case FrameType::kHello:
      return CheckPayload<Hello>(payload, ParseHello);
    case FrameType::kPing:
      return CheckPayload<Ping>(payload, ParsePing);
    case FrameType::kPong:
      return CheckPayload<Pong>(payload, ParsePong);
    case FrameType::kRequest:
      return CheckPayload<TransferRequest>(payload, [](Bytes bytes) { return ParseRequest(bytes, 64); });
    case FrameType::kPrefillDone:
      return CheckPayload<PrefillDone>(payload, ParsePrefillDone);
    case FrameType::kOffer:
      return CheckPayload<TransferOffer>(payload, ParseOffer);
    case FrameType::kAvailable:
    case FrameType::kNak:
      return CheckPayload<CumulativeBytes>(payload, ParseCumulativeBytes);
    case FrameType::kGrant:
      return CheckPayload<StreamGrant>(payload, ParseStreamGrant);
    case FrameType::kEnd:
      return CheckPayload<StreamEnd>(payload, ParseStreamEnd);
    case FrameType::kPage:
      return CheckPage(payload);
    case FrameType::kError:
    case FrameType::kAbort:
      return CheckStatus(payload);
    default:
      return;
  }
}

// Frames and the final error, as one string of bytes to compare.
std::vector<std::byte> ReadAll(Bytes bytes, std::size_t piece) {
  FrameReader reader({.max_frame_bytes = kMinFrameBytes, .max_prompt_tokens = 64});
  std::vector<std::byte> seen;
  ByteWriter writer(&seen);
  while (!bytes.empty()) {
    Bytes part = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(part.size());
    for (;;) {
      const auto frame = reader.Next(&part);
      if (!frame.ok()) {
        writer.PutString(frame.status().ToString());
        return seen;
      }
      if (!*frame) break;
      const FrameHeader& header = (*frame)->header;
      AppendFrame(header, (*frame)->payload, &seen);
      writer.Put(std::uint8_t((*frame)->payload_ok));
      LYNX_CHECK((*frame)->payload.size() == header.payload_bytes);
      if ((*frame)->payload_ok) CheckPayloadOf(header.type, (*frame)->payload);
    }
    LYNX_CHECK(part.empty());
  }
  writer.Put(std::uint8_t(reader.Unfinished() != nullptr));
  return seen;
}

// Records of a kind, a length and bytes: frames with right checksums, and now and then bytes as they are.
std::vector<std::byte> TakeFrames(ByteReader input) {
  std::vector<std::byte> stream;
  while (input.left() > 0) {
    const auto kind = input.Get<std::uint8_t>();
    const std::size_t size = input.Get<std::uint8_t>();
    const Bytes bytes = input.GetBytes(std::min(size, input.left()));
    if (kind % 16 == 15) {
      stream.insert(stream.end(), bytes.begin(), bytes.end());
      continue;
    }
    FrameHeader header;
    header.type = FrameType(kind % 16 + (kind % 128 == 77 ? 16 : 0));
    header.critical = kind < 128;
    header.request = kind;
    AppendFrame(header, bytes, &stream);
  }
  return stream;
}

}  // namespace
}  // namespace lynx

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lynx;
  if (size == 0) return 0;
  const Bytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] < 32) {
    CheckPayloadOf(FrameType(data[0]), bytes);
    return 0;
  }
  const std::vector<std::byte> stream = TakeFrames(ByteReader(bytes));
  const auto whole = ReadAll(stream, stream.size() + 1);
  for (std::size_t piece : {std::size_t(1), std::size_t(data[0])}) LYNX_CHECK(ReadAll(stream, piece) == whole);
  return 0;
}
