// Payloads of all frames but HELLO. Parsers read everything, then judge once: the reader stays safe past its end.

#include <bit>
#include <climits>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

Status CheckWhole(const ByteReader& reader, std::string_view frame) {
  if (!reader.ok()) return Corrupt(std::string(frame) + " payload is too short or a text in it too long");
  if (reader.left() != 0) return Corrupt(std::string(frame) + " payload has trailing bytes");
  return Ok();
}

void PutFloat(float value, ByteWriter* writer) { writer->Put(std::bit_cast<std::uint32_t>(value)); }
float GetFloat(ByteReader* reader) { return std::bit_cast<float>(reader->Get<std::uint32_t>()); }

// The Status of a check as the fault of the peer that sent the value.
Status AsCorrupt(const Status& status, std::string_view frame) {
  return status.ok() ? Ok() : Corrupt(std::string(frame) + ": " + status.message());
}

}  // namespace

void Encode(const Ping& ping, std::vector<std::byte>* out) { ByteWriter(out).Put(ping.sent_ns); }

Result<Ping> ParsePing(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  const Ping ping{reader.Get<TimeNs>()};
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "PING"));
  return ping;
}

void Encode(const Pong& pong, std::vector<std::byte>* out) {
  ByteWriter writer(out);
  writer.Put(pong.sent_ns);
  writer.Put(pong.open_requests);
}

Result<Pong> ParsePong(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  Pong pong;
  pong.sent_ns = reader.Get<TimeNs>();
  pong.open_requests = reader.Get<std::uint32_t>();
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "PONG"));
  return pong;
}

void Encode(const TransferRequest& request, std::vector<std::byte>* out) {
  ByteWriter writer(out);
  writer.Put(request.deadline_ms);
  writer.Put(std::uint8_t(request.reuse));
  writer.Put(std::uint8_t(request.overlap));
  writer.Put(std::uint8_t(request.anchor_first));
  writer.Put(std::uint8_t(request.sampling.method));
  PutFloat(request.sampling.temperature, &writer);
  writer.Put(request.sampling.top_k);
  PutFloat(request.sampling.top_p, &writer);
  PutFloat(request.sampling.min_p, &writer);
  writer.Put(request.sampling.seed);
  writer.Put(request.first_token);
  writer.PutString(std::string_view(request.codec).substr(0, kMaxNameBytes));
  writer.Put(std::uint32_t(request.tokens.size()));
  for (const Token token : request.tokens) writer.Put(token);
}

Result<TransferRequest> ParseRequest(std::span<const std::byte> payload, std::uint32_t max_prompt_tokens) {
  ByteReader reader(payload);
  TransferRequest request;
  request.deadline_ms = reader.Get<std::uint32_t>();
  const auto reuse = reader.Get<std::uint8_t>();
  const auto overlap = reader.Get<std::uint8_t>();
  const auto anchor_first = reader.Get<std::uint8_t>();
  const auto method = reader.Get<std::uint8_t>();
  request.sampling.temperature = GetFloat(&reader);
  request.sampling.top_k = reader.Get<std::int32_t>();
  request.sampling.top_p = GetFloat(&reader);
  request.sampling.min_p = GetFloat(&reader);
  request.sampling.seed = reader.Get<std::uint64_t>();
  request.first_token = reader.Get<std::uint32_t>();
  request.codec = reader.GetString(kMaxNameBytes);
  const auto token_count = reader.Get<std::uint32_t>();
  if (token_count > max_prompt_tokens) return LimitExceeded("REQUEST: prompt is longer than max_prompt_tokens");
  const auto tokens = reader.GetBytes(std::size_t{token_count} * sizeof(Token));
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "REQUEST"));
  if (reuse > 1) return Corrupt("REQUEST: reuse is out of range");
  if (overlap > 1) return Corrupt("REQUEST: overlap is out of range");
  if (anchor_first > 1) return Corrupt("REQUEST: anchor_first is out of range");
  if (method > std::uint8_t(SamplingMethod::kRejection)) return Corrupt("REQUEST: sampling method is out of range");
  if (request.first_token != 0 && request.first_token >= token_count) {
    return Corrupt("REQUEST: first_token lies behind the prompt");
  }
  request.reuse = reuse != 0;
  request.overlap = overlap != 0;
  request.anchor_first = anchor_first != 0;
  request.sampling.method = SamplingMethod(method);
  request.tokens.resize(token_count);
  for (std::size_t i = 0; i < token_count; ++i) {
    request.tokens[i] = LoadLittle<Token>(tokens.data() + i * sizeof(Token));
  }
  return request;
}

void Encode(const TransferOffer& offer, std::vector<std::byte>* out) {
  ByteWriter writer(out);
  writer.Put(offer.stream_count);
  writer.Put(offer.part_count);
  writer.Put(offer.first_token);
  writer.Put(offer.token_count);
  writer.Put(offer.elements);
  for (const std::uint64_t bytes : offer.max_bytes) writer.Put(bytes);
}

Result<TransferOffer> ParseOffer(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  TransferOffer offer;
  offer.stream_count = reader.Get<std::uint32_t>();
  offer.part_count = reader.Get<std::uint32_t>();
  offer.first_token = reader.Get<std::uint32_t>();
  offer.token_count = reader.Get<std::uint32_t>();
  offer.elements = reader.Get<std::uint64_t>();
  if (offer.stream_count > kMaxStreams) return Corrupt("OFFER: stream_count is out of range");
  for (std::uint32_t k = 0; k < offer.stream_count; ++k) offer.max_bytes.push_back(reader.Get<std::uint64_t>());
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "OFFER"));
  LYNX_RETURN_IF_ERROR(AsCorrupt(CheckOffer(offer), "OFFER"));
  return offer;
}

Status CheckOffer(const TransferOffer& offer) {
  if (offer.stream_count < 1 || offer.stream_count > kMaxStreams) return Invalid("stream_count is out of range");
  if (offer.part_count < 1 || offer.part_count > kMaxParts) return Invalid("part_count is out of range");
  if (offer.max_bytes.size() != offer.stream_count) return Invalid("max_bytes needs one value per stream");
  for (const std::uint64_t bytes : offer.max_bytes) {
    if (bytes > kMaxStreamBytes) return Invalid("max_bytes is out of range");
  }
  if (offer.first_token > INT_MAX || offer.token_count > INT_MAX - offer.first_token) {
    return Invalid("token range is out of range");
  }
  return Ok();
}

void Encode(const PrefillDone& done, std::vector<std::byte>* out) {
  ByteWriter writer(out);
  writer.Put(done.token0);
  writer.Put(done.reused_tokens);
  writer.Put(done.prefill_ns);
}

Result<PrefillDone> ParsePrefillDone(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  PrefillDone done;
  done.token0 = reader.Get<Token>();
  done.reused_tokens = reader.Get<std::uint32_t>();
  done.prefill_ns = reader.Get<TimeNs>();
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "PREFILL_DONE"));
  return done;
}

void Encode(const CumulativeBytes& bytes, std::vector<std::byte>* out) { ByteWriter(out).Put(bytes.bytes); }

Result<CumulativeBytes> ParseCumulativeBytes(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  const CumulativeBytes bytes{reader.Get<std::uint64_t>()};
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "AVAILABLE or NAK"));
  return bytes;
}

void Encode(const StreamGrant& grant, std::vector<std::byte>* out) {
  ByteWriter writer(out);
  writer.Put(grant.bytes);
  writer.Put(grant.acknowledged);
}

Result<StreamGrant> ParseStreamGrant(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  StreamGrant grant;
  grant.bytes = reader.Get<std::uint64_t>();
  grant.acknowledged = reader.Get<std::uint64_t>();
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "GRANT"));
  return grant;
}

void Encode(const PageFragment& fragment, std::vector<std::byte>* out) {
  const std::size_t begin = out->size();
  ByteWriter writer(out);
  writer.Put(std::uint16_t(fragment.address.layer));
  writer.Put(std::uint8_t(fragment.address.kind));
  writer.Put(std::uint8_t{0});
  writer.Put(std::uint32_t(fragment.address.first_head));
  writer.Put(std::uint32_t(fragment.address.head_count));
  writer.Put(std::uint32_t(fragment.address.first_token));
  writer.Put(std::uint32_t(fragment.address.token_count));
  writer.Put(fragment.total);
  writer.Put(fragment.offset);
  LYNX_CHECK(out->size() - begin == kPageHeaderBytes);
}

Result<PageFragment> ParsePage(std::span<const std::byte> payload, std::span<const std::byte>* bytes) {
  ByteReader reader(payload);
  const auto layer = reader.Get<std::uint16_t>();
  const auto kind = reader.Get<std::uint8_t>();
  const auto reserved = reader.Get<std::uint8_t>();
  PageFragment fragment;
  PageAddress& address = fragment.address;
  address = {.layer = layer, .kind = KvKind(kind)};
  // Values above INT_MAX come out negative, which CheckWireAddress refuses.
  address.first_head = reader.Get<std::int32_t>();
  address.head_count = reader.Get<std::int32_t>();
  address.first_token = reader.Get<std::int32_t>();
  address.token_count = reader.Get<std::int32_t>();
  fragment.total = reader.Get<std::uint32_t>();
  fragment.offset = reader.Get<std::uint32_t>();
  *bytes = reader.GetBytes(reader.left());
  if (!reader.ok()) return Corrupt("PAGE payload is too short");
  if (kind > 1 || reserved != 0) return Corrupt("PAGE: kind is out of range");
  if (bytes->empty() || fragment.offset > fragment.total || bytes->size() > fragment.total - fragment.offset) {
    return Corrupt("PAGE: fragment lies outside its page stream");
  }
  LYNX_RETURN_IF_ERROR(AsCorrupt(CheckWireAddress(address), "PAGE"));
  return fragment;
}

Status CheckWireAddress(const PageAddress& address) {
  if (address.layer < 0 || address.layer > UINT16_MAX) return Invalid("layer is out of range");
  if (address.first_head < 0 || address.head_count < 1 || address.head_count > INT_MAX - address.first_head) {
    return Invalid("head range is empty or out of range");
  }
  if (address.first_token < 0 || address.token_count < 1 || address.token_count > INT_MAX - address.first_token) {
    return Invalid("token range is empty or out of range");
  }
  return Ok();
}

void Encode(const StreamEnd& end, std::vector<std::byte>* out) {
  ByteWriter writer(out);
  writer.Put(end.pages);
  writer.Put(end.bytes);
  writer.Put(end.digest);
  writer.Put(end.naks);
}

Result<StreamEnd> ParseStreamEnd(std::span<const std::byte> payload) {
  ByteReader reader(payload);
  StreamEnd end;
  end.pages = reader.Get<std::uint64_t>();
  end.bytes = reader.Get<std::uint64_t>();
  end.digest = reader.Get<std::uint32_t>();
  end.naks = reader.Get<std::uint32_t>();
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "END"));
  return end;
}

std::uint32_t AddToDigest(std::uint32_t digest, std::uint32_t page_stream_crc) {
  std::byte bytes[sizeof page_stream_crc];
  StoreLittle(page_stream_crc, bytes);
  return Crc32c(bytes, digest);
}

void Encode(const Status& status, std::vector<std::byte>* out) {
  LYNX_CHECK(!status.ok());
  ByteWriter writer(out);
  writer.Put(std::uint8_t(status.code()));
  writer.PutString(std::string_view(status.message()).substr(0, kMaxMessageBytes));
}

Status ParseStatus(std::span<const std::byte> payload, Status* status) {
  ByteReader reader(payload);
  const auto code = reader.Get<std::uint8_t>();
  std::string message = reader.GetString(kMaxMessageBytes);
  LYNX_RETURN_IF_ERROR(CheckWhole(reader, "ERROR or ABORT"));
  if (code == std::uint8_t(ErrorCode::kOk) || code > std::uint8_t(ErrorCode::kEngine)) {
    return Corrupt("ERROR or ABORT: code is out of range");
  }
  // The text reaches logs and terminals: one line, no control characters.
  for (char& c : message) {
    if (std::uint8_t(c) < 0x20 || c == 0x7f) c = ' ';
  }
  *status = Status(ErrorCode(code), std::move(message));
  return Ok();
}

}  // namespace lynx
