// Wrong input: damaged streams, mixed-up streams, small buffers. Nothing of it may touch the destination.
#include <gtest/gtest.h>

#include "codec/page_memory_test.h"
#include "codec/page_stream.h"

namespace lynx::testing {
namespace {

// Large enough that coding shortens it: else `lynx` pages would travel exactly.
const PageAddress kAddress{1, KvKind::kValue, 0, 2, 288, 24};
constexpr int kHeadDim = 5;

struct Encoded {
  std::unique_ptr<Codec> codec;
  Streams streams;
};

Encoded EncodeSmall(const std::string& spec, const PageAddress& address = kAddress, std::uint64_t seed = 1,
                    float first = 0.5f) {
  Encoded encoded;
  encoded.codec = MustMake(spec, ShapeFor(4, kHeadDim));
  PageMemory source(address, kHeadDim, ElementType::kBf16);
  auto values =
      PaintValues(Input::kNormal, address.token_count, address.head_count * kHeadDim, seed, ElementType::kBf16);
  values[0] = first;
  source.Fill(values);
  encoded.streams = EncodePage(*encoded.codec, source.view()).value();
  const bool exact = spec == "raw" || !std::isfinite(first);
  EXPECT_EQ(IsExact(encoded.streams), exact) << spec;
  return encoded;
}

// Decodes everything and expects an error that leaves the destination as it was.
Status Refused(const Codec& codec, const Streams& streams, const PageAddress& address = kAddress) {
  PageMemory target(address, kHeadDim, ElementType::kBf16);
  const auto before = target.bytes();
  const Status status = DecodePage(codec, streams, streams.size(), target.span());
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(target.bytes(), before);
  return status;
}

TEST(CodecErrors, A11EveryTruncationAndExtension) {
  for (const std::string& name : CodecNames()) {
    for (float first : {0.5f, INFINITY}) {
      const Encoded encoded = EncodeSmall(name, kAddress, 1, first);
      for (std::size_t k = 0; k < encoded.streams.size(); ++k) {
        for (std::size_t size = 0; size < encoded.streams[k].size(); ++size) {
          Streams damaged = encoded.streams;
          damaged[k].resize(size);
          damaged[k].shrink_to_fit();
          EXPECT_EQ(Refused(*encoded.codec, damaged).code(), ErrorCode::kCorrupt) << name << " " << k << " " << size;
        }
        Streams damaged = encoded.streams;
        damaged[k].push_back(std::byte{0});
        EXPECT_EQ(Refused(*encoded.codec, damaged).code(), ErrorCode::kCorrupt);
      }
    }
  }
}

TEST(CodecErrors, A11EveryBitFlip) {
  for (const std::string& name : CodecNames()) {
    for (float first : {0.5f, INFINITY}) {
      const Encoded encoded = EncodeSmall(name, kAddress, 1, first);
      for (std::size_t k = 0; k < encoded.streams.size(); ++k) {
        for (std::size_t bit = 0; bit < 8 * encoded.streams[k].size(); ++bit) {
          Streams damaged = encoded.streams;
          damaged[k][bit / 8] ^= std::byte(1 << bit % 8);
          EXPECT_FALSE(Refused(*encoded.codec, damaged).ok());
        }
      }
    }
  }
}

// Header fields with a valid checksum: what a mismatch of peers looks like.
TEST(CodecErrors, EveryHeaderFieldIsCompared) {
  struct Case {
    std::size_t offset;
    std::uint8_t flip;
    ErrorCode code;
  };
  const Case cases[] = {
      {0, 1, ErrorCode::kCorrupt},         // magic
      {2, 2, ErrorCode::kUnsupported},     // format version
      {3, 8, ErrorCode::kUnsupported},     // codec
      {4, 1, ErrorCode::kInvalid},         // stream
      {5, 4, ErrorCode::kUnsupported},     // stream count
      {6, 0x10, ErrorCode::kUnsupported},  // a fatal flag
      {7, 0x03, ErrorCode::kUnsupported},  // element type
      {7, 0x20, ErrorCode::kUnsupported},  // kind unknown
      {7, 0x10, ErrorCode::kInvalid},      // the other kind
      {8, 1, ErrorCode::kInvalid},         // layer
      {10, 1, ErrorCode::kInvalid},        // first head
      {12, 1, ErrorCode::kInvalid},        // head count
      {14, 1, ErrorCode::kInvalid},        // head_dim
      {16, 1, ErrorCode::kInvalid},        // first token
      {19, 0x80, ErrorCode::kInvalid},     // first token, sign bit
      {20, 1, ErrorCode::kInvalid},        // token count
      {22, 1, ErrorCode::kUnsupported},    // fingerprint
      {24, 1, ErrorCode::kCorrupt},        // payload bytes
      {28, 1, ErrorCode::kInvalid},        // checksum of stream 0
  };
  for (const std::string& name : CodecNames()) {
    for (const Case& each : cases) {
      Encoded encoded = EncodeSmall(name);
      encoded.streams[0][each.offset] ^= std::byte(each.flip);
      PutChecksum(&encoded.streams[0]);
      const Status status = Refused(*encoded.codec, encoded.streams);
      EXPECT_EQ(status.code(), each.code) << name << " offset " << each.offset << ": " << status.ToString();
    }
  }
}

TEST(CodecErrors, ReservedFlagsThatMayBeSkippedAreSkipped) {
  Encoded encoded = EncodeSmall("int8");
  encoded.streams[0][6] ^= std::byte{0x0e};
  PutChecksum(&encoded.streams[0]);
  PageMemory target(kAddress, kHeadDim, ElementType::kBf16);
  EXPECT_TRUE(DecodePage(*encoded.codec, encoded.streams, 1, target.span()).ok());
}

TEST(CodecErrors, MixedUpStreams) {
  for (const std::string& name : CodecNames()) {
    if (MustMake(name, ShapeFor(4, kHeadDim))->info().stream_count != 2) continue;
    const Encoded here = EncodeSmall(name);
    Streams mixed = here.streams;
    std::swap(mixed[0], mixed[1]);
    EXPECT_EQ(Refused(*here.codec, mixed).code(), ErrorCode::kInvalid);
    mixed = {here.streams[0], here.streams[0]};
    EXPECT_EQ(Refused(*here.codec, mixed).code(), ErrorCode::kInvalid);
    mixed = here.streams;
    mixed.push_back(here.streams[1]);
    EXPECT_EQ(Refused(*here.codec, mixed).code(), ErrorCode::kInvalid);
    // The residual of the same address in another request.
    mixed = {here.streams[0], EncodeSmall(name, kAddress, 2).streams[1]};
    EXPECT_EQ(Refused(*here.codec, mixed).code(), ErrorCode::kInvalid);
    // An exact page's empty residual.
    mixed = {here.streams[0], EncodeSmall(name, kAddress, 1, INFINITY).streams[1]};
    EXPECT_EQ(Refused(*here.codec, mixed).code(), ErrorCode::kInvalid);
  }
}

TEST(CodecErrors, OtherCodecsParametersAndPages) {
  for (const std::string& name : CodecNames()) {
    for (const std::string& other : CodecNames()) {
      if (name == other) continue;
      EXPECT_EQ(Refused(*EncodeSmall(name).codec, {EncodeSmall(other).streams[0]}).code(), ErrorCode::kUnsupported);
    }
    for (PageAddress other :
         {PageAddress{0, KvKind::kValue, 0, 2, 288, 24}, PageAddress{1, KvKind::kKey, 0, 2, 288, 24},
          PageAddress{1, KvKind::kValue, 1, 2, 288, 24}, PageAddress{1, KvKind::kValue, 0, 3, 288, 24},
          PageAddress{1, KvKind::kValue, 0, 2, 289, 24}, PageAddress{1, KvKind::kValue, 0, 2, 288, 25}}) {
      const Encoded encoded = EncodeSmall(name);
      EXPECT_EQ(Refused(*encoded.codec, encoded.streams, other).code(), ErrorCode::kInvalid);
    }
  }
  const Encoded paper = EncodeSmall("paper:alpha=99");
  const Status status = Refused(*EncodeSmall("paper").codec, paper.streams);
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_NE(status.message().find("parameters"), std::string::npos) << status.message();
}

// Hostile bytes behind a valid checksum: scales that are not numbers are refused, any codes decode to something finite.
TEST(CodecErrors, A12HostilePayloads) {
  for (const std::string& name : CodecNames()) {
    Random random(5);
    for (int round = 0; round < 300; ++round) {
      Encoded encoded = EncodeSmall(name);
      for (auto& stream : encoded.streams) {
        for (std::size_t i = kPageStreamHeaderBytes; i < stream.size(); ++i) stream[i] = std::byte(random.Next());
      }
      Reseal(&encoded.streams);
      PageMemory target(kAddress, kHeadDim, ElementType::kF32);
      const auto before = target.bytes();
      const Status status = DecodePage(*encoded.codec, encoded.streams, encoded.streams.size(), target.span());
      if (!status.ok()) {
        EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
        EXPECT_EQ(target.bytes(), before);
      } else if ((encoded.streams[0][6] & std::byte{1}) == std::byte{0}) {  // an exact page may hold anything
        for (float value : target.Values()) EXPECT_TRUE(std::isfinite(value)) << name;
      }
    }
  }
}

TEST(CodecErrors, CallersMistakes) {
  const auto codec = MustMake("nested", ShapeFor(4, kHeadDim));
  PageMemory source(kAddress, kHeadDim, ElementType::kBf16);
  source.Fill(PaintValues(Input::kNormal, 24, 2 * kHeadDim, 1, ElementType::kBf16));
  const PageShape shape{kAddress.kind, 2, kHeadDim, kAddress.token_count};
  std::vector<std::byte> first(codec->MaxBytes(shape, 0)), second(codec->MaxBytes(shape, 1));
  std::vector<std::byte> scratch(codec->ScratchBytes(shape));
  std::size_t sizes[2];
  const auto encode = [&](PageView page, std::size_t shorter0, std::size_t shorter1, std::size_t shorter_scratch) {
    const std::span<std::byte> buffers[] = {std::span(first).first(first.size() - shorter0),
                                            std::span(second).first(second.size() - shorter1)};
    return codec->Encode(page, buffers, sizes, std::span(scratch).first(scratch.size() - shorter_scratch)).code();
  };
  EXPECT_EQ(encode(source.view(), 0, 0, 0), ErrorCode::kOk);
  EXPECT_EQ(encode(source.view(), 1, 0, 0), ErrorCode::kInvalid);
  EXPECT_EQ(encode(source.view(), 0, 1, 0), ErrorCode::kInvalid);
  EXPECT_EQ(encode(source.view(), 0, 0, 1), ErrorCode::kInvalid);
  PageView page = source.view();
  page.head_dim = kHeadDim + 1;
  EXPECT_EQ(encode(page, 0, 0, 0), ErrorCode::kInvalid);
  page = source.view();
  page.element_type = ElementType::kF16;
  EXPECT_EQ(encode(page, 0, 0, 0), ErrorCode::kInvalid);
  page = source.view();
  page.address.layer = 2;  // K only
  EXPECT_EQ(encode(page, 0, 0, 0), ErrorCode::kInvalid);
  page = source.view();
  page.address.token_count = 257;
  EXPECT_EQ(encode(page, 0, 0, 0), ErrorCode::kInvalid);
  page.address.token_count = 0;
  EXPECT_EQ(encode(page, 0, 0, 0), ErrorCode::kInvalid);

  const std::span<std::byte> one_buffer[] = {first};
  EXPECT_EQ(codec->Encode(source.view(), one_buffer, sizes, scratch).code(), ErrorCode::kInvalid);
  const Streams streams = EncodePage(*codec, source.view()).value();
  PageMemory target(kAddress, kHeadDim, ElementType::kBf16);
  EXPECT_EQ(DecodePage(*codec, streams, 0, target.span()).code(), ErrorCode::kInvalid);
  const std::span<const std::byte> anchor[] = {streams[0]};
  EXPECT_EQ(codec->Decode(anchor, target.span(), std::span(scratch).first(8)).code(), ErrorCode::kInvalid);
  EXPECT_EQ(codec->Decode(anchor, target.span(), scratch).code(), ErrorCode::kOk);
}

TEST(Catalog, SpecsAndTheirErrors) {
  const CacheShape shape = ShapeFor(2, 8);
  EXPECT_EQ(CodecNames(), (std::vector<std::string>{"raw", "int8", "int4", "paper", "paper127", "nested", "lynx"}));
  const auto spec_of = [&](std::string_view spec) { return (*MakeCodec(spec, shape))->info().spec; };
  EXPECT_EQ(spec_of("raw"), "raw");
  EXPECT_EQ(spec_of("int4:group=0"), "int4");
  EXPECT_EQ(spec_of("int8:group=32"), "int8:group=32");
  EXPECT_EQ(spec_of("paper"), "paper:alpha=100");
  EXPECT_EQ(spec_of("paper:alpha=100.0"), "paper:alpha=100");
  EXPECT_EQ(spec_of("paper127:alpha=2.5"), "paper127:alpha=2.5");
  EXPECT_EQ(spec_of("nested"), "nested:anchor=4,recent=64,unrope=0");
  EXPECT_EQ(spec_of("nested:unrope=1,anchor=6"), "nested:anchor=6,recent=64,unrope=1");
  EXPECT_EQ(spec_of("nested:unrope=-0,recent=-0"), "nested:anchor=4,recent=0,unrope=0");
  EXPECT_EQ(spec_of("lynx:streams=3"), "lynx:anchor_bits=2.25,recent=64,streams=3,unrope=1");
  for (const std::string& name : CodecNames()) {
    const CodecInfo info = (*MakeCodec(name, shape))->info();
    EXPECT_EQ(info.name, name);
    EXPECT_EQ(spec_of(info.spec), info.spec);
    EXPECT_EQ(info.couples_heads, name == "int8" || name == "int4");
    EXPECT_EQ(info.heads_per_page, name == "lynx" ? 1 : 0);
  }
  const auto error_of = [&](std::string_view spec) { return MakeCodec(spec, shape).status(); };
  EXPECT_EQ(error_of("zip").code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error_of("zip").message(), "no codec \"zip\", there are raw, int8, int4, paper, paper127, nested, lynx");
  for (const char* spec : {"", "Raw", " raw", "raw "}) EXPECT_EQ(error_of(spec).code(), ErrorCode::kUnsupported);
  for (const char* spec : {"raw:",
                           "raw:bits=8",
                           "int4:group=-1",
                           "int4:group=1.5",
                           "int8:group=257",
                           "paper:",
                           "paper:beta=1",
                           "paper:alpha",
                           "paper:alpha=",
                           "paper:alpha=x",
                           "paper:alpha=0",
                           "paper:alpha=-1",
                           "paper:alpha=nan",
                           "paper:alpha=1e9",
                           "paper:alpha=1x",
                           "nested:anchor=2",
                           "nested:anchor=7",
                           "nested:anchor=3.5",
                           "nested:residual=4",
                           "lynx:anchor_bits=1.1",
                           "lynx:streams=2.5",
                           "lynx:streams=4",
                           "lynx:recent=1e999",
                           "lynx:anchor_bits=inf",
                           "lynx:recent=1,recent=1",
                           "paper:alpha=1,,alpha=2",
                           "paper:alpha=1,"}) {
    EXPECT_EQ(error_of(spec).code(), ErrorCode::kInvalid) << spec;
  }
  EXPECT_EQ(error_of("paper:beta=1").message(), "codec paper: no parameter \"beta\", it has alpha");
  EXPECT_EQ(error_of("paper:alpha=1,alpha=2").message(), "codec paper: alpha is given twice");

  EXPECT_FALSE(MakeCodec("raw", CacheShape{}).ok());
  EXPECT_FALSE(MakeCodec("raw", ShapeFor(0, 8)).ok());
  EXPECT_FALSE(MakeCodec("raw", ShapeFor(1, 0)).ok());
  EXPECT_FALSE(MakeCodec("raw", ShapeFor(129, 128)).ok());
  EXPECT_TRUE(MakeCodec("raw", ShapeFor(128, 128)).ok());
}

}  // namespace
}  // namespace lynx::testing
