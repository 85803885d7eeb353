// Wire: frames, their header and payloads, as bytes and back. The format is normative in docs/wire.md. Nothing here
// knows what a frame is good for; that is transfer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lynx/page.h"
#include "lynx/result.h"
#include "lynx/sampling.h"

namespace lynx {

// Monotonic time in nanoseconds; the origin does not matter.
using TimeNs = std::int64_t;
inline constexpr TimeNs kMillisecondNs = 1'000'000;
inline constexpr TimeNs kSecondNs = 1'000'000'000;

// --- limits that no peer can raise ---
inline constexpr std::uint8_t kWireVersionMin = 1;  // versions that this build speaks
inline constexpr std::uint8_t kWireVersionMax = 1;
inline constexpr std::size_t kMaxHelloBytes = 16 << 10;
inline constexpr std::size_t kMaxControlBytes = 2 << 10;  // payload of every frame but HELLO, REQUEST and PAGE
inline constexpr std::size_t kMaxMessageBytes = 1 << 10;  // of ERROR and ABORT
inline constexpr std::size_t kMaxNameBytes = 256;         // node, codec and layout field names
inline constexpr std::size_t kMaxLayoutValueBytes = 4 << 10;
inline constexpr std::size_t kMaxLayoutFields = 64;
inline constexpr std::size_t kMaxCodecs = 64;
inline constexpr std::uint32_t kMaxStreams = 16;
inline constexpr std::uint32_t kMaxParts = 64;
inline constexpr std::uint64_t kMaxStreamBytes = std::uint64_t{1} << 48;  // that an offer may announce
inline constexpr std::uint32_t kMaxResends = 2;                           // of one page that arrives damaged
inline constexpr std::uint32_t kMinFrameBytes = 4 << 10;                  // a peer may not ask for smaller frames

// --- frames ---

enum class FrameType : std::uint8_t {
  kHello = 1,
  kError = 2,
  kPing = 3,
  kPong = 4,
  kRequest = 5,
  kPrefillDone = 6,
  kOffer = 7,
  kAvailable = 8,
  kGrant = 9,
  kPage = 10,
  kEnd = 11,
  kAbort = 12,
  kDone = 13,
  kNak = 14,
};

inline constexpr std::uint32_t kFrameMagic = 0x584e594c;  // "LYNX" in memory
inline constexpr std::size_t kFrameHeaderBytes = 40;

// `stream`, `request` and `part` are zero where the type does not use them.
struct FrameHeader {
  std::uint8_t version = kWireVersionMin;
  FrameType type = FrameType::kPing;
  bool critical = true;  // a reader that does not know the type must refuse it (false: skip it)
  std::uint8_t stream = 0;
  std::uint64_t request = 0;
  std::uint16_t part = 0;
  std::uint32_t epoch_tag = 0;  // EpochTag of the sender's epoch
  std::uint32_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;  // CRC-32C
  bool operator==(const FrameHeader&) const = default;
};

inline std::uint32_t EpochTag(std::uint64_t epoch) { return std::uint32_t(epoch ^ (epoch >> 32)); }

// A frame is written in place: BeginFrame appends room for the header and returns where it lies, the caller appends the
// payload, EndFrame fills in the header with the payload's length and checksum (those of `header` are ignored).
std::size_t BeginFrame(std::vector<std::byte>* out);
void EndFrame(const FrameHeader& header, std::size_t begin, std::vector<std::byte>* out);
void AppendFrame(const FrameHeader& header, std::span<const std::byte> payload, std::vector<std::byte>* out);

// Two of a node's limits bound the payload of frames; the rest are constants. Zeros are right before HELLO.
struct FrameLimits {
  std::uint32_t max_frame_bytes = 0;    // PAGE payload
  std::uint32_t max_prompt_tokens = 0;  // REQUEST
};
std::size_t MaxPayloadBytes(FrameType type, const FrameLimits& limits);

// One frame. The payload lives until the next call of FrameReader::Next.
struct FrameView {
  FrameHeader header;
  std::span<const std::byte> payload;
  bool payload_ok = true;  // its checksum fits; otherwise only the header may be believed
};

// Cuts a byte stream into frames. Nothing is allocated before the header's checksum and limits are checked, and never
// more than one payload; frames of unknown optional types are skipped without being kept.
class FrameReader {
 public:
  explicit FrameReader(const FrameLimits& limits) : limits_(limits) {}
  void set_limits(const FrameLimits& limits) { limits_ = limits; }

  // Takes bytes from the front of *bytes; gives the next frame, or nothing once all are taken. Errors (kCorrupt,
  // kUnsupported, kLimit) are final: where the next frame begins is not known any more.
  Result<std::optional<FrameView>> Next(std::span<const std::byte>* bytes);

  // The header of a frame whose payload has come in part, checked; null: none.
  const FrameHeader* Unfinished() const { return header_ ? &*header_ : nullptr; }

 private:
  Status TakeHeader();

  FrameLimits limits_;
  std::array<std::byte, kFrameHeaderBytes> header_bytes_{};
  std::size_t header_taken_ = 0;
  std::optional<FrameHeader> header_;
  std::size_t skip_ = 0;  // bytes of an unknown optional payload still to come
  std::vector<std::byte> payload_;
  bool delivered_ = false;  // payload_ was handed out
};

// --- payloads ---

// One property that both nodes must share, as text: {"model", "SmolLM2-135M-Instruct"}. HELLO carries them all; the
// first that differs or is missing is named in the refusal.
struct LayoutField {
  std::string name;
  std::string value;
  bool operator==(const LayoutField&) const = default;
};

enum class NodeRole : std::uint8_t { kPrefill = 0, kDecode = 1 };

struct TransferLimits {
  std::uint32_t max_frame_bytes = 1 << 20;  // payload of one frame, at least kMinFrameBytes
  std::uint32_t max_requests = 256;         // open at a time, per peer
  std::uint32_t max_prompt_tokens = 1 << 18;
  std::uint64_t max_page_stream_bytes = 16 << 20;  // one page stream
  bool operator==(const TransferLimits&) const = default;
};

struct Hello {
  std::uint8_t wire_version_min = kWireVersionMin;
  std::uint8_t wire_version_max = kWireVersionMax;
  NodeRole role = NodeRole::kDecode;
  std::uint64_t epoch = 0;
  std::string name;
  std::vector<LayoutField> layout;
  std::vector<std::string> codecs;
  TransferLimits limits;
  bool operator==(const Hello&) const = default;
};

struct Ping {
  TimeNs sent_ns = 0;  // the sender's clock; PONG returns it
};

struct Pong {
  TimeNs sent_ns = 0;
  std::uint32_t open_requests = 0;
};

// decode -> prefill
struct TransferRequest {
  std::vector<Token> tokens;
  SamplingOptions sampling;
  std::uint32_t first_token = 0;  // the cache of the tokens before it is there already: pages from there on only
  std::string codec;              // canonical spec
  std::uint32_t deadline_ms = 0;  // from now; 0: none
  bool reuse = true;              // false: read the whole prompt again even if its cache is kept (measurements)
  bool overlap = true;  // false: pages are offered only when the whole prompt is prefilled (the paper's order)
  // Its first stream goes before later streams of other requests. False: all its streams go in the request's turn.
  bool anchor_first = true;
  bool operator==(const TransferRequest&) const = default;
};

// prefill -> decode: what is about to travel. A transfer has one part per sending rank.
struct TransferOffer {
  std::uint32_t stream_count = 1;  // 1 … kMaxStreams
  std::uint32_t part_count = 1;    // 1 … kMaxParts
  std::uint32_t first_token = 0;
  std::uint32_t token_count = 0;
  std::uint64_t elements = 0;
  std::vector<std::uint64_t> max_bytes;  // per stream, upper bound over all parts
  bool operator==(const TransferOffer&) const = default;
};

// prefill -> decode: the prompt is read and token 0 chosen.
struct PrefillDone {
  Token token0 = 0;
  std::uint32_t reused_tokens = 0;  // prompt tokens taken from a kept cache
  TimeNs prefill_ns = 0;            // spent on the prefill node
  bool operator==(const PrefillDone&) const = default;
};

// A position in one part of a stream: page-stream bytes in sending order, pages that are sent again included.
// AVAILABLE: as many are ready. NAK: where a PAGE frame began that arrived damaged.
struct CumulativeBytes {
  std::uint64_t bytes = 0;
};

// decode -> prefill: positions as above.
struct StreamGrant {
  std::uint64_t bytes = 0;         // as many may be sent
  std::uint64_t acknowledged = 0;  // pages that end up to here arrived whole or were asked for by NAK
  bool operator==(const StreamGrant&) const = default;
};

// Precedes the bytes of a fragment of a page stream.
inline constexpr std::size_t kPageHeaderBytes = 28;
struct PageFragment {
  PageAddress address;
  std::uint32_t total = 0;   // length of the page stream, the same in each of its frames
  std::uint32_t offset = 0;  // of this fragment
};

// All of one part of a stream has been sent.
struct StreamEnd {
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;   // sum of the page streams' lengths
  std::uint32_t digest = 0;  // AddToDigest over the page streams in sending order, from 0
  std::uint32_t naks = 0;    // that the sender has answered; a damaged copy counts in none of the above
  bool operator==(const StreamEnd&) const = default;
};
// The digest after one more page stream: CRC-32C over the page streams' CRC-32C values, 4 bytes little-endian each.
std::uint32_t AddToDigest(std::uint32_t digest, std::uint32_t page_stream_crc);

// Each appends the payload of its frame. HELLO's node name, REQUEST's codec and a message are cut at their limits.
void Encode(const Hello& hello, std::vector<std::byte>* out);
void Encode(const Ping& ping, std::vector<std::byte>* out);
void Encode(const Pong& pong, std::vector<std::byte>* out);
void Encode(const TransferRequest& request, std::vector<std::byte>* out);
void Encode(const TransferOffer& offer, std::vector<std::byte>* out);
void Encode(const PrefillDone& done, std::vector<std::byte>* out);
void Encode(const CumulativeBytes& bytes, std::vector<std::byte>* out);
void Encode(const PageFragment& fragment, std::vector<std::byte>* out);
void Encode(const StreamGrant& grant, std::vector<std::byte>* out);
void Encode(const StreamEnd& end, std::vector<std::byte>* out);
void Encode(const Status& status, std::vector<std::byte>* out);  // ERROR and ABORT; not ok

// Each reads a whole payload: kCorrupt naming the frame when it is too short, too long or out of range.
Result<Hello> ParseHello(std::span<const std::byte> payload);
Result<Ping> ParsePing(std::span<const std::byte> payload);
Result<Pong> ParsePong(std::span<const std::byte> payload);
Result<TransferRequest> ParseRequest(std::span<const std::byte> payload, std::uint32_t max_prompt_tokens);
Result<TransferOffer> ParseOffer(std::span<const std::byte> payload);
Result<PrefillDone> ParsePrefillDone(std::span<const std::byte> payload);
Result<CumulativeBytes> ParseCumulativeBytes(std::span<const std::byte> payload);
Result<StreamGrant> ParseStreamGrant(std::span<const std::byte> payload);
Result<StreamEnd> ParseStreamEnd(std::span<const std::byte> payload);
// The Status that ERROR or ABORT carries, in *status.
Status ParseStatus(std::span<const std::byte> payload, Status* status);
// PAGE: the fragment's header, and its bytes (at least one, inside `total`) in *bytes.
Result<PageFragment> ParsePage(std::span<const std::byte> payload, std::span<const std::byte>* bytes);

// kInvalid naming the value of an offer that is out of range.
Status CheckOffer(const TransferOffer& offer);
// kInvalid naming the value of an address that a PAGE frame cannot carry.
Status CheckWireAddress(const PageAddress& address);

}  // namespace lynx
