// HELLO is a list of fields {tag u16, length u32, bytes}, so that later versions can add some. Tags from
// kCriticalTag on must be understood, others are skipped.

#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/status_macros.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

enum HelloTag : std::uint16_t {
  kVersions = 1,
  kRole = 2,
  kEpoch = 3,
  kName = 4,
  kLimits = 5,
  kLayout = 6,  // repeated
  kCodec = 7,   // repeated
};
constexpr std::uint16_t kCriticalTag = 0x8000;

template <typename Fill>
void PutField(HelloTag tag, std::vector<std::byte>* out, Fill fill) {
  ByteWriter writer(out);
  writer.Put(std::uint16_t(tag));
  const std::size_t length_at = out->size();
  writer.Put(std::uint32_t{0});
  fill(&writer);
  StoreLittle(std::uint32_t(out->size() - length_at - sizeof(std::uint32_t)), out->data() + length_at);
}

// One known field into *hello. `field` must be used up exactly.
Status ParseField(std::uint16_t tag, ByteReader field, Hello* hello) {
  switch (tag) {
    case kVersions:
      hello->wire_version_min = field.Get<std::uint8_t>();
      hello->wire_version_max = field.Get<std::uint8_t>();
      break;
    case kRole: {
      const auto role = field.Get<std::uint8_t>();
      if (role > std::uint8_t(NodeRole::kDecode)) return Corrupt("HELLO: role is out of range");
      hello->role = NodeRole(role);
      break;
    }
    case kEpoch:
      hello->epoch = field.Get<std::uint64_t>();
      break;
    case kName:
      hello->name = field.GetString(kMaxNameBytes);
      break;
    case kLimits:
      hello->limits.max_frame_bytes = field.Get<std::uint32_t>();
      hello->limits.max_requests = field.Get<std::uint32_t>();
      hello->limits.max_prompt_tokens = field.Get<std::uint32_t>();
      hello->limits.max_page_stream_bytes = field.Get<std::uint64_t>();
      break;
    case kLayout: {
      if (hello->layout.size() >= kMaxLayoutFields) return LimitExceeded("HELLO: too many layout fields");
      std::string name = field.GetString(kMaxNameBytes);
      hello->layout.push_back({std::move(name), field.GetString(kMaxLayoutValueBytes)});
      break;
    }
    case kCodec:
      if (hello->codecs.size() >= kMaxCodecs) return LimitExceeded("HELLO: too many codecs");
      hello->codecs.push_back(field.GetString(kMaxNameBytes));
      break;
  }
  if (!field.ok() || field.left() != 0) return Corrupt("HELLO: field " + std::to_string(tag) + " has a wrong length");
  return Ok();
}

bool Known(std::uint16_t tag) { return tag >= kVersions && tag <= kCodec; }
bool Single(std::uint16_t tag) { return tag < kLayout; }

}  // namespace

void Encode(const Hello& hello, std::vector<std::byte>* out) {
  PutField(kVersions, out, [&](ByteWriter* writer) {
    writer->Put(hello.wire_version_min);
    writer->Put(hello.wire_version_max);
  });
  PutField(kRole, out, [&](ByteWriter* writer) { writer->Put(std::uint8_t(hello.role)); });
  PutField(kEpoch, out, [&](ByteWriter* writer) { writer->Put(hello.epoch); });
  PutField(kName, out,
           [&](ByteWriter* writer) { writer->PutString(std::string_view(hello.name).substr(0, kMaxNameBytes)); });
  PutField(kLimits, out, [&](ByteWriter* writer) {
    writer->Put(hello.limits.max_frame_bytes);
    writer->Put(hello.limits.max_requests);
    writer->Put(hello.limits.max_prompt_tokens);
    writer->Put(hello.limits.max_page_stream_bytes);
  });
  for (const LayoutField& field : hello.layout) {
    PutField(kLayout, out, [&](ByteWriter* writer) {
      writer->PutString(field.name);
      writer->PutString(field.value);
    });
  }
  for (const std::string& codec : hello.codecs) {
    PutField(kCodec, out, [&](ByteWriter* writer) { writer->PutString(codec); });
  }
}

Result<Hello> ParseHello(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Hello hello;
  std::uint32_t seen = 0;  // bit per single field
  while (reader.left() > 0) {
    const auto tag = reader.Get<std::uint16_t>();
    const auto length = reader.Get<std::uint32_t>();
    const auto bytes = reader.GetBytes(length);
    if (!reader.ok()) return Corrupt("HELLO payload is too short");
    if (!Known(tag)) {
      if (tag >= kCriticalTag) return Unsupported("HELLO: field " + std::to_string(tag) + " is not known here");
      continue;
    }
    if (Single(tag) && (seen & (1u << tag)) != 0)
      return Corrupt("HELLO: field " + std::to_string(tag) + " comes twice");
    seen |= 1u << tag;
    LYNX_RETURN_IF_ERROR(ParseField(tag, ByteReader(bytes), &hello));
  }
  for (const std::uint16_t tag : {kVersions, kRole, kEpoch, kName, kLimits}) {
    if ((seen & (1u << tag)) == 0) return Corrupt("HELLO: field " + std::to_string(tag) + " is missing");
  }
  return hello;
}

}  // namespace lynx
