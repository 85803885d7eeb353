#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "lynx/wire.h"

namespace lynx {
namespace {

using Payload = std::vector<std::byte>;

template <typename T>
Payload Encoded(const T& value) {
  Payload payload;
  Encode(value, &payload);
  return payload;
}

Hello TestHello() {
  Hello hello;
  hello.role = NodeRole::kPrefill;
  hello.epoch = 0x0123456789abcdef;
  hello.name = "node";
  hello.layout = {{"model", "toy"}, {"layers", "30"}};
  hello.codecs = {"nested", "raw"};
  hello.limits.max_requests = 5;
  return hello;
}

TransferRequest TestRequest() {
  TransferRequest request;
  request.tokens = {1, -2, 3};
  request.sampling = {0.5f, 40, 0.9f, 0.05f, 99, SamplingMethod::kRejection};
  request.codec = "nested:anchor=4";
  request.deadline_ms = 7000;
  request.overlap = false;
  request.anchor_first = false;
  request.first_token = 2;
  return request;
}

TransferOffer TestOffer() {
  TransferOffer offer;
  offer.stream_count = 3;
  offer.part_count = 2;
  offer.first_token = 5;
  offer.token_count = 100;
  offer.elements = 12345678901;
  offer.max_bytes = {1, 2, kMaxStreamBytes};
  return offer;
}

Payload TestPage() {
  Payload payload = Encoded(PageFragment{{65535, KvKind::kValue, 3, 4, 256, 17}, 1000, 900});
  payload.resize(payload.size() + 100);
  return payload;
}

Status ParsePageStatus(std::span<const std::byte> payload) {
  std::span<const std::byte> bytes;
  return ParsePage(payload, &bytes).status();
}
Status ParseStatusStatus(std::span<const std::byte> payload) {
  Status status;
  return ParseStatus(payload, &status);
}

TEST(Payload, RoundTrips) {
  EXPECT_EQ(*ParseHello(Encoded(TestHello())), TestHello());
  EXPECT_EQ(*ParseRequest(Encoded(TestRequest()), 3), TestRequest());
  EXPECT_EQ(*ParseOffer(Encoded(TestOffer())), TestOffer());
  EXPECT_EQ(ParsePing(Encoded(Ping{-5}))->sent_ns, -5);
  EXPECT_EQ(ParsePong(Encoded(Pong{INT64_MAX, 7}))->open_requests, 7u);
  const PrefillDone done{-1, 2, 3};
  EXPECT_EQ(*ParsePrefillDone(Encoded(done)), done);
  EXPECT_EQ(ParseCumulativeBytes(Encoded(CumulativeBytes{UINT64_MAX}))->bytes, UINT64_MAX);
  const StreamGrant grant{1, UINT64_MAX};
  EXPECT_EQ(*ParseStreamGrant(Encoded(grant)), grant);
  const StreamEnd end{1, 2, 3, 4};
  EXPECT_EQ(*ParseStreamEnd(Encoded(end)), end);

  Status status;
  ASSERT_TRUE(ParseStatus(Encoded(LimitExceeded("busy\nnow")), &status).ok());
  EXPECT_EQ(status.ToString(), LimitExceeded("busy now").ToString());

  std::span<const std::byte> bytes;
  const Payload page = TestPage();
  const auto fragment = ParsePage(page, &bytes);
  ASSERT_TRUE(fragment.ok());
  EXPECT_EQ(fragment->address, (PageAddress{65535, KvKind::kValue, 3, 4, 256, 17}));
  EXPECT_EQ(fragment->total, 1000u);
  EXPECT_EQ(fragment->offset, 900u);
  EXPECT_EQ(bytes.size(), 100u);
}

struct ParserCase {
  std::string name;
  Payload payload;
  std::function<Status(std::span<const std::byte>)> parse;
};

std::vector<ParserCase> AllParsers() {
  return {
      {"HELLO", Encoded(TestHello()), [](auto p) { return ParseHello(p).status(); }},
      {"REQUEST", Encoded(TestRequest()), [](auto p) { return ParseRequest(p, 3).status(); }},
      {"OFFER", Encoded(TestOffer()), [](auto p) { return ParseOffer(p).status(); }},
      {"PING", Encoded(Ping{1}), [](auto p) { return ParsePing(p).status(); }},
      {"PONG", Encoded(Pong{1, 2}), [](auto p) { return ParsePong(p).status(); }},
      {"PREFILL_DONE", Encoded(PrefillDone{}), [](auto p) { return ParsePrefillDone(p).status(); }},
      {"NAK", Encoded(CumulativeBytes{}), [](auto p) { return ParseCumulativeBytes(p).status(); }},
      {"GRANT", Encoded(StreamGrant{}), [](auto p) { return ParseStreamGrant(p).status(); }},
      {"END", Encoded(StreamEnd{}), [](auto p) { return ParseStreamEnd(p).status(); }},
      {"ABORT", Encoded(IoError("gone")), ParseStatusStatus},
      {"PAGE", TestPage(), ParsePageStatus},
  };
}

TEST(Payload, EveryTruncationIsRefused) {
  for (const ParserCase& test : AllParsers()) {
    ASSERT_TRUE(test.parse(test.payload).ok()) << test.name;
    for (std::size_t size = 0; size < test.payload.size(); ++size) {
      if (test.name == "PAGE" && size > kPageHeaderBytes) continue;  // a shorter fragment is a fragment
      // HELLO is a list: without some of its repeated fields it is another HELLO.
      const Status status = test.parse(std::span(test.payload).first(size));
      if (test.name == "HELLO" && status.ok()) {
        EXPECT_NE(*ParseHello(std::span(test.payload).first(size)), TestHello());
        continue;
      }
      EXPECT_EQ(status.code(), ErrorCode::kCorrupt) << test.name << " " << size;
    }
  }
}

TEST(Payload, TrailingBytesAreRefused) {
  for (const ParserCase& test : AllParsers()) {
    auto longer = test.payload;
    longer.push_back(std::byte{0});
    EXPECT_EQ(test.parse(longer).code(), ErrorCode::kCorrupt) << test.name;
  }
}

// Random damage never crashes and never reads past the end (sanitizers look on).
TEST(Payload, DamageIsSafe) {
  for (const ParserCase& test : AllParsers()) {
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      Random random(seed);
      auto damaged = test.payload;
      for (int i = 0; i < 3; ++i) damaged[random.Below(damaged.size())] = std::byte(random.Next());
      damaged.resize(random.Below(damaged.size() + 1));
      (void)test.parse(damaged);
    }
  }
}

TEST(Payload, HelloSkipsUnknownOptionalFieldsAndRefusesCriticalOnes) {
  Payload payload = Encoded(TestHello());
  ByteWriter writer(&payload);
  writer.Put(std::uint16_t{77});
  writer.PutString("from the future");
  EXPECT_EQ(*ParseHello(payload), TestHello());
  writer.Put(std::uint16_t{0x8001});
  writer.PutString("must be understood");
  EXPECT_EQ(ParseHello(payload).status().code(), ErrorCode::kUnsupported);
}

TEST(Payload, HelloLimits) {
  Hello hello = TestHello();
  hello.layout.assign(kMaxLayoutFields, {"a", "b"});
  EXPECT_TRUE(ParseHello(Encoded(hello)).ok());
  hello.layout.push_back({"a", "b"});
  EXPECT_EQ(ParseHello(Encoded(hello)).status().code(), ErrorCode::kLimit);

  hello = TestHello();
  hello.codecs.assign(kMaxCodecs + 1, "c");
  EXPECT_EQ(ParseHello(Encoded(hello)).status().code(), ErrorCode::kLimit);
  hello.codecs = {std::string(kMaxNameBytes + 1, 'c')};
  EXPECT_EQ(ParseHello(Encoded(hello)).status().code(), ErrorCode::kCorrupt);

  // The same field twice, and one missing.
  const Payload once = Encoded(TestHello());
  Payload twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(ParseHello(twice).status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(ParseHello(std::span(once).subspan(8)).status().message(), "HELLO: field 1 is missing");
}

TEST(Payload, CountsAreCheckedBeforeTheyAreUsed) {
  EXPECT_EQ(ParseRequest(Encoded(TestRequest()), 2).status().code(), ErrorCode::kLimit);
  TransferRequest request = TestRequest();
  for (const std::uint32_t first_token : {3u, 4u, UINT32_MAX}) {
    request.first_token = first_token;
    EXPECT_EQ(ParseRequest(Encoded(request), 3).status().message(), "REQUEST: first_token lies behind the prompt");
  }
  request.first_token = 0;
  request.tokens.clear();  // for the prefill node to judge
  EXPECT_TRUE(ParseRequest(Encoded(request), 3).ok());
  TransferOffer offer = TestOffer();
  offer.stream_count = UINT32_MAX;
  EXPECT_EQ(ParseOffer(Encoded(offer)).status().message(), "OFFER: stream_count is out of range");
  offer = TestOffer();
  offer.part_count = kMaxParts + 1;
  EXPECT_EQ(ParseOffer(Encoded(offer)).status().message(), "OFFER: part_count is out of range");
  offer.part_count = 0;
  EXPECT_FALSE(ParseOffer(Encoded(offer)).ok());
  offer = TestOffer();
  offer.first_token = INT_MAX;
  EXPECT_EQ(ParseOffer(Encoded(offer)).status().message(), "OFFER: token range is out of range");
}

TEST(Payload, PagesOutOfRange) {
  const auto refused = [](PageFragment fragment, std::size_t bytes) {
    Payload payload = Encoded(fragment);
    payload.resize(payload.size() + bytes);
    return ParsePageStatus(payload).code() == ErrorCode::kCorrupt;
  };
  const PageFragment good{{0, KvKind::kKey, 0, 1, 0, 1}, 10, 4};
  EXPECT_FALSE(refused(good, 6));
  EXPECT_TRUE(refused(good, 0));
  EXPECT_TRUE(refused(good, 7));
  auto bad = good;
  bad.offset = UINT32_MAX;
  EXPECT_TRUE(refused(bad, 6));
  bad = good;
  bad.address.token_count = 0;
  EXPECT_TRUE(refused(bad, 6));
  bad = good;
  bad.address.token_count = INT_MAX;
  bad.address.first_token = 1;
  EXPECT_TRUE(refused(bad, 6));
  bad = good;
  bad.address.head_count = -1;
  EXPECT_TRUE(refused(bad, 6));
  bad = good;
  bad.address.kind = KvKind(2);
  EXPECT_TRUE(refused(bad, 6));
}

}  // namespace
}  // namespace lynx
