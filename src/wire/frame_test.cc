#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

constexpr FrameLimits kLimits{1 << 16, 1 << 10};

std::vector<std::byte> Bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = std::byte(i * 7 + 1);
  return bytes;
}

FrameHeader PageHeader() {
  FrameHeader header;
  header.type = FrameType::kPage;
  header.stream = 2;
  header.request = 0x0102030405060708;
  header.part = 513;
  header.epoch_tag = 0xdeadbeef;
  return header;
}

// Header and payload sizes of all frames in `bytes`, cut after each of `cuts`, and the first error.
struct ReadOutcome {
  std::vector<FrameHeader> headers;
  std::vector<std::vector<std::byte>> payloads;
  bool all_ok = true;
  Status status;
};
ReadOutcome Read(std::span<const std::byte> bytes, std::size_t piece, FrameReader* reader) {
  ReadOutcome outcome;
  while (!bytes.empty()) {
    auto now = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(now.size());
    while (true) {
      const auto frame = reader->Next(&now);
      if (!frame.ok()) {
        outcome.status = frame.status();
        return outcome;
      }
      if (!*frame) break;
      outcome.headers.push_back((*frame)->header);
      outcome.payloads.emplace_back((*frame)->payload.begin(), (*frame)->payload.end());
      outcome.all_ok &= (*frame)->payload_ok;
    }
  }
  return outcome;
}
ReadOutcome Read(std::span<const std::byte> bytes, std::size_t piece = SIZE_MAX) {
  FrameReader reader(kLimits);
  return Read(bytes, piece, &reader);
}

// The header with its field at `offset` changed and its checksum made to fit again.
template <typename T>
std::vector<std::byte> Changed(std::vector<std::byte> frame, std::size_t offset, T value) {
  StoreLittle(value, frame.data() + offset);
  StoreLittle(Crc32c(std::span(frame).first(36)), frame.data() + 36);
  return frame;
}

TEST(Frame, HeaderBytesAreThoseOfTheDocument) {
  std::vector<std::byte> out;
  AppendFrame(PageHeader(), Bytes(3), &out);
  ASSERT_EQ(out.size(), kFrameHeaderBytes + 3);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), 4), "LYNX");
  EXPECT_EQ(LoadLittle<std::uint8_t>(&out[4]), 1);
  EXPECT_EQ(LoadLittle<std::uint8_t>(&out[5]), 10);
  EXPECT_EQ(LoadLittle<std::uint8_t>(&out[6]), 1);
  EXPECT_EQ(LoadLittle<std::uint8_t>(&out[7]), 2);
  EXPECT_EQ(LoadLittle<std::uint64_t>(&out[8]), 0x0102030405060708u);
  EXPECT_EQ(LoadLittle<std::uint16_t>(&out[16]), 513);
  EXPECT_EQ(LoadLittle<std::uint32_t>(&out[20]), 0xdeadbeefu);
  EXPECT_EQ(LoadLittle<std::uint32_t>(&out[24]), 3u);
  EXPECT_EQ(LoadLittle<std::uint32_t>(&out[28]), Crc32cReference(Bytes(3)));
  EXPECT_EQ(LoadLittle<std::uint32_t>(&out[36]), Crc32cReference(std::span(out).first(36)));
}

TEST(Frame, EveryPieceSizeGivesTheSameFrames) {
  std::vector<std::byte> out;
  for (const std::size_t size : {0, 1, 39, 40, 41, 300}) AppendFrame(PageHeader(), Bytes(size), &out);
  const ReadOutcome whole = Read(out);
  ASSERT_EQ(whole.headers.size(), 6u);
  EXPECT_TRUE(whole.all_ok);
  EXPECT_EQ(whole.payloads[5], Bytes(300));
  for (std::size_t piece = 1; piece < out.size(); ++piece) {
    const ReadOutcome cut = Read(out, piece);
    ASSERT_EQ(cut.headers, whole.headers) << piece;
    ASSERT_EQ(cut.payloads, whole.payloads) << piece;
  }
}

TEST(Frame, EveryBitFlipIsSeen) {
  std::vector<std::byte> out;
  AppendFrame(PageHeader(), Bytes(60), &out);
  for (std::size_t bit = 0; bit < 8 * out.size(); ++bit) {
    auto flipped = out;
    flipped[bit / 8] ^= std::byte(1 << (bit % 8));
    const ReadOutcome outcome = Read(flipped);
    EXPECT_TRUE(!outcome.status.ok() || (outcome.headers.size() == 1 && !outcome.all_ok)) << bit;
    EXPECT_EQ(outcome.status.ok(), bit >= 8 * kFrameHeaderBytes) << bit;
  }
}

TEST(Frame, SwappedWordsAreSeen) {
  std::vector<std::byte> out;
  AppendFrame(PageHeader(), Bytes(60), &out);
  std::swap_ranges(out.begin() + 50, out.begin() + 52, out.begin() + 70);
  EXPECT_FALSE(Read(out).all_ok);
}

TEST(Frame, UnknownOptionalIsSkippedUnknownCriticalRefused) {
  std::vector<std::byte> frame;
  AppendFrame(PageHeader(), Bytes(500), &frame);
  auto out = Changed(Changed(frame, 5, std::uint8_t{200}), 6, std::uint8_t{0});
  out[45] ^= std::byte{1};  // nobody reads the payload
  out.insert(out.end(), frame.begin(), frame.end());
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, SIZE_MAX}) {
    const ReadOutcome outcome = Read(out, piece);
    EXPECT_TRUE(outcome.status.ok());
    ASSERT_EQ(outcome.headers.size(), 1u);
    EXPECT_EQ(outcome.headers[0].type, FrameType::kPage);
  }
  const ReadOutcome critical = Read(Changed(frame, 5, std::uint8_t{200}));
  EXPECT_EQ(critical.status.code(), ErrorCode::kUnsupported);
}

TEST(Frame, HostileHeadersAreRefusedBeforeTheirPayload) {
  std::vector<std::byte> frame;
  AppendFrame(PageHeader(), {}, &frame);
  EXPECT_EQ(Read(Changed(frame, 24, std::uint32_t{(1 << 16) + 1})).status.code(), ErrorCode::kLimit);
  EXPECT_EQ(Read(Changed(frame, 24, UINT32_MAX)).status.code(), ErrorCode::kLimit);
  EXPECT_TRUE(Read(Changed(frame, 24, std::uint32_t{1 << 16})).status.ok());
  EXPECT_EQ(Read(Changed(frame, 4, std::uint8_t{2})).status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Read(Changed(frame, 4, std::uint8_t{0})).status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Read(Changed(frame, 6, std::uint8_t{3})).status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Read(Changed(frame, 18, std::uint16_t{1})).status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(Read(Changed(frame, 32, std::uint32_t{1})).status.code(), ErrorCode::kUnsupported);
  // Skipped frames have a limit too.
  EXPECT_EQ(
      Read(Changed(Changed(Changed(frame, 5, std::uint8_t{99}), 6, std::uint8_t{0}), 24, UINT32_MAX)).status.code(),
      ErrorCode::kLimit);
}

TEST(Frame, BeforeHelloOnlySmallFramesAreRead) {
  FrameReader reader(FrameLimits{});
  std::vector<std::byte> frame;
  AppendFrame(PageHeader(), Bytes(1), &frame);
  EXPECT_EQ(Read(frame, SIZE_MAX, &reader).status.code(), ErrorCode::kLimit);
  EXPECT_LE(MaxPayloadBytes(FrameType::kHello, {}), 16u << 10);
  EXPECT_LE(MaxPayloadBytes(FrameType::kRequest, {}), 16u << 10);
}

TEST(Frame, AStrangerIsCalledAStranger) {
  const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/7.88.1\r\n\r\n";
  const ReadOutcome outcome = Read(std::as_bytes(std::span(text)));
  EXPECT_EQ(outcome.status.code(), ErrorCode::kCorrupt);
  EXPECT_NE(outcome.status.message().find("not a Lynx frame"), std::string::npos);
}

}  // namespace
}  // namespace lynx
