// The envelope of every encoded page stream: a fixed header and a CRC-32C, docs/codec.md "Page stream".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

inline constexpr std::size_t kPageStreamHeaderBytes = 36;
inline constexpr std::uint8_t kPageFormatVersion = 1;

// Values are part of the format. From 128 on: baselines, which no node sends or accepts.
enum class CodecId : std::uint8_t {
  kRaw = 1,
  kInt8 = 2,
  kInt4 = 3,
  kPaper = 4,
  kPaper127 = 5,
  kNested = 6,
  kLynx = 7,
  kFp8 = 128,
  kKivi = 129,
  kKvQuant = 130,
  kQuantSpec = 131,
  kCacheGen = 132,
  kTurboQuant = 133,
  kSplitZip = 134,
  kPaperAblation = 135,
};

struct PageHeader {
  CodecId codec = CodecId::kRaw;
  std::uint16_t fingerprint = 0;  // of the codec's canonical spec
  int stream = 0;
  int stream_count = 1;
  bool exact = false;                             // stream 0 holds the elements' own bits, later streams are empty
  ElementType element_type = ElementType::kBf16;  // of the page that was encoded
  PageAddress address;
  int head_dim = 0;
  std::uint32_t anchor_checksum = 0;  // checksum of the page's stream 0; 0 in stream 0 itself
};

struct OpenedPageStream {
  PageHeader header;
  std::uint32_t checksum = 0;
  std::span<const std::byte> payload;
};

// The low 16 bits of the CRC-32C of a canonical spec.
std::uint16_t SpecFingerprint(std::string_view spec);

// Completes a stream whose payload lies at stream[kPageStreamHeaderBytes…] up to its end: writes header and checksum;
// returns the checksum. The header's numbers must fit their fields (codecs check the cache shape once).
std::uint32_t SealPageStream(const PageHeader& header, std::span<std::byte> stream);

// Checks length, version, checksum and reserved bits. kCorrupt or kUnsupported.
Result<OpenedPageStream> OpenPageStream(std::span<const std::byte> stream);

}  // namespace lynx
