#include "codec/page_stream.h"

#include <string>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"

namespace lynx {
namespace {

// offset  bytes  field
//      0      2  magic "LP"
//      2      1  format version
//      3      1  codec
//      4      1  stream
//      5      1  stream count
//      6      1  flags: bit 0 exact; bits 1-3 reserved, ignored; bits 4-7 reserved, fatal
//      7      1  bits 0-3 element type, bits 4-7 kind
//      8      2  layer
//     10      2  first head
//     12      2  head count
//     14      2  head_dim
//     16      4  first token
//     20      2  token count
//     22      2  fingerprint of the canonical spec
//     24      4  payload bytes
//     28      4  checksum of stream 0 (0 in stream 0)
//     32      4  checksum: CRC-32C of bytes 0-31 and the payload
//     36         payload
constexpr std::uint16_t kMagic = 0x504c;
constexpr std::size_t kChecksumOffset = 32;
constexpr std::uint8_t kFlagExact = 0x01;
constexpr std::uint8_t kFatalFlags = 0xf0;

std::uint32_t Checksum(std::span<const std::byte> stream) {
  return Crc32c(stream.subspan(kPageStreamHeaderBytes), Crc32c(stream.first(kChecksumOffset)));
}

}  // namespace

std::uint16_t SpecFingerprint(std::string_view spec) {
  return std::uint16_t(Crc32c(std::as_bytes(std::span(spec.data(), spec.size()))));
}

std::uint32_t SealPageStream(const PageHeader& header, std::span<std::byte> stream) {
  LYNX_CHECK(stream.size() >= kPageStreamHeaderBytes);
  std::byte* to = stream.data();
  const PageAddress& address = header.address;
  StoreLittle(kMagic, to);
  StoreLittle(kPageFormatVersion, to + 2);
  StoreLittle(std::uint8_t(header.codec), to + 3);
  StoreLittle(std::uint8_t(header.stream), to + 4);
  StoreLittle(std::uint8_t(header.stream_count), to + 5);
  StoreLittle(header.exact ? kFlagExact : std::uint8_t{0}, to + 6);
  StoreLittle(std::uint8_t(unsigned(header.element_type) | unsigned(address.kind) << 4), to + 7);
  StoreLittle(std::uint16_t(address.layer), to + 8);
  StoreLittle(std::uint16_t(address.first_head), to + 10);
  StoreLittle(std::uint16_t(address.head_count), to + 12);
  StoreLittle(std::uint16_t(header.head_dim), to + 14);
  StoreLittle(std::uint32_t(address.first_token), to + 16);
  StoreLittle(std::uint16_t(address.token_count), to + 20);
  StoreLittle(header.fingerprint, to + 22);
  StoreLittle(std::uint32_t(stream.size() - kPageStreamHeaderBytes), to + 24);
  StoreLittle(header.anchor_checksum, to + 28);
  const std::uint32_t checksum = Checksum(stream);
  StoreLittle(checksum, to + kChecksumOffset);
  return checksum;
}

Result<OpenedPageStream> OpenPageStream(std::span<const std::byte> stream) {
  if (stream.size() < kPageStreamHeaderBytes) return Corrupt("page stream is shorter than its header");
  const std::byte* from = stream.data();
  if (LoadLittle<std::uint16_t>(from) != kMagic) return Corrupt("page stream does not begin with \"LP\"");
  if (const auto version = LoadLittle<std::uint8_t>(from + 2); version != kPageFormatVersion) {
    return Unsupported("page stream has format version " + std::to_string(version) + ", this build reads version " +
                       std::to_string(kPageFormatVersion));
  }
  if (LoadLittle<std::uint32_t>(from + 24) != stream.size() - kPageStreamHeaderBytes) {
    return Corrupt("page stream length differs from its header");
  }
  OpenedPageStream opened;
  opened.checksum = Checksum(stream);
  if (LoadLittle<std::uint32_t>(from + kChecksumOffset) != opened.checksum) {
    return Corrupt("page stream checksum differs");
  }
  const auto flags = LoadLittle<std::uint8_t>(from + 6);
  if ((flags & kFatalFlags) != 0) return Unsupported("page stream uses a feature that this build does not know");
  const auto types = LoadLittle<std::uint8_t>(from + 7);
  if ((types & 0x0f) > unsigned(ElementType::kF32)) return Unsupported("page stream has an unknown element type");
  if ((types >> 4) > unsigned(KvKind::kValue)) return Unsupported("page stream has an unknown kind");

  PageHeader& header = opened.header;
  header.codec = CodecId(LoadLittle<std::uint8_t>(from + 3));
  header.stream = LoadLittle<std::uint8_t>(from + 4);
  header.stream_count = LoadLittle<std::uint8_t>(from + 5);
  header.exact = (flags & kFlagExact) != 0;
  header.element_type = ElementType(types & 0x0f);
  header.address.kind = KvKind(types >> 4);
  header.address.layer = LoadLittle<std::uint16_t>(from + 8);
  header.address.first_head = LoadLittle<std::uint16_t>(from + 10);
  header.address.head_count = LoadLittle<std::uint16_t>(from + 12);
  header.head_dim = LoadLittle<std::uint16_t>(from + 14);
  header.address.first_token = LoadLittle<std::int32_t>(from + 16);
  header.address.token_count = LoadLittle<std::uint16_t>(from + 20);
  header.fingerprint = LoadLittle<std::uint16_t>(from + 22);
  header.anchor_checksum = LoadLittle<std::uint32_t>(from + 28);
  opened.payload = stream.subspan(kPageStreamHeaderBytes);
  return opened;
}

}  // namespace lynx
