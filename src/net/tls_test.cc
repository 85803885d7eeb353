// TLS in memory: two streams, their bytes carried by the test.
#include "net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "net/certificate_folder_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes ToBytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes RandomBytes(std::size_t size, Random* random) {
  Bytes bytes(size);
  for (std::byte& b : bytes) b = std::byte(random->Below(256));
  return bytes;
}

struct End {
  std::unique_ptr<TlsStream> stream;
  Bytes plain, out;
  Status status;

  void Receive(std::span<const std::byte> bytes) {
    if (status.ok()) status = stream->Receive(bytes, &plain, &out);
  }
};

// Both ends; what one writes is carried to the other in pieces of at most `piece` bytes (random if `random` is given).
class Pair {
 public:
  Pair(const TlsOptions& client_options, const TlsOptions& server_options, std::string_view host = "localhost")
      : client_context_(TlsContext::Load(client_options).value()),
        server_context_(TlsContext::Load(server_options).value()) {
    client.stream = client_context_->Connect(host);
    server.stream = server_context_->Accept();
    client.Receive({});
    server.Receive({});
  }

  void Carry(std::size_t piece = std::size_t(-1), Random* random = nullptr) {
    while (!client.out.empty() || !server.out.empty()) {
      Carry(&client, &server, piece, random);
      Carry(&server, &client, piece, random);
    }
  }

  End client, server;

 private:
  static void Carry(End* from, End* to, std::size_t piece, Random* random) {
    const Bytes bytes = std::exchange(from->out, {});
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const std::size_t most = std::min(rest.size(), piece);
      const std::size_t count = random == nullptr ? most : 1 + random->Below(std::uint32_t(most));
      to->Receive(rest.first(count));
      rest = rest.subspan(count);
    }
  }

  std::unique_ptr<TlsContext> client_context_, server_context_;
};

class Tls : public ::testing::Test {
 protected:
  CertificateFolder folder_;
  const TlsOptions server_ = folder_.Make("localhost"), client_ = folder_.Make("client");
};

TEST_F(Tls, CarriesBytesInAnySplit) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Pair pair(client_, server_);
    pair.Carry(seed % 2 == 0 ? 40 : 2000, &random);
    ASSERT_TRUE(pair.client.stream->established() && pair.server.stream->established());
    Bytes up, down;
    for (int i = 0; i < 10; ++i) {
      const Bytes to_server = RandomBytes(random.Below(40'000), &random);
      const Bytes to_client = RandomBytes(random.Below(200), &random);
      ASSERT_TRUE(pair.client.stream->Send(to_server, &pair.client.out).ok());
      ASSERT_TRUE(pair.server.stream->Send(to_client, &pair.server.out).ok());
      up.insert(up.end(), to_server.begin(), to_server.end());
      down.insert(down.end(), to_client.begin(), to_client.end());
      pair.Carry(50'000, &random);
    }
    EXPECT_TRUE(pair.server.plain == up && pair.client.plain == down);
    EXPECT_TRUE(pair.server.status.ok() && pair.client.status.ok());
  }
}

TEST_F(Tls, ByteByByte) {
  Pair pair(client_, server_);
  pair.Carry(1);
  ASSERT_TRUE(pair.client.stream->Send(ToBytes("anchor"), &pair.client.out).ok());
  pair.Carry(1);
  EXPECT_EQ(pair.server.plain, ToBytes("anchor"));
}

// The end of the handshake and the first data may come in one piece.
TEST_F(Tls, DataRightBehindTheHandshake) {
  Pair pair(client_, server_);
  pair.server.Receive(std::exchange(pair.client.out, {}));
  pair.client.Receive(std::exchange(pair.server.out, {}));
  ASSERT_TRUE(pair.client.stream->established());
  const Bytes data(100'000, std::byte{7});
  ASSERT_TRUE(pair.client.stream->Send(data, &pair.client.out).ok());
  pair.server.Receive(pair.client.out);
  EXPECT_EQ(pair.server.plain, data);
}

TEST_F(Tls, RecordsAreSmall) {
  Pair pair(client_, server_);
  pair.Carry();
  for (const std::size_t size : {std::size_t(1), kMaxTlsRecordBytes, kMaxTlsRecordBytes + 1, std::size_t(1 << 20)}) {
    Bytes out;
    ASSERT_TRUE(pair.client.stream->Send(Bytes(size), &out).ok());
    std::size_t records = 0;
    for (std::size_t at = 0; at < out.size(); ++records) {
      ASSERT_EQ(out[at], std::byte{23});  // application data
      const std::size_t length = (std::size_t(out[at + 3]) << 8) + std::size_t(out[at + 4]);
      EXPECT_LE(length, kMaxTlsRecordBytes + 17);
      at += 5 + length;
    }
    EXPECT_EQ(records, (size + kMaxTlsRecordBytes - 1) / kMaxTlsRecordBytes);
  }
}

TEST_F(Tls, KeysChange) {
  Pair pair(client_, server_);
  pair.Carry();
  const Bytes data(4 << 20, std::byte{3});
  std::size_t more = 0;  // than records of data
  for (std::uint64_t sent = 0; sent < kTlsKeyBytes + data.size(); sent += data.size()) {
    ASSERT_TRUE(pair.client.stream->Send(data, &pair.client.out).ok());
    more += pair.client.out.size() - data.size() / kMaxTlsRecordBytes * (kMaxTlsRecordBytes + 5 + 17);
    pair.Carry();
    ASSERT_TRUE(pair.server.status.ok()) << pair.server.status.ToString();
    ASSERT_TRUE(std::exchange(pair.server.plain, {}) == data);
    ASSERT_TRUE(pair.server.out.empty()) << "nobody asked for new keys";
  }
  EXPECT_EQ(more, 5 + 5 + 17u) << "not one key update";
}

// B14, fault 24
TEST_F(Tls, NoPrefixOfAHandshakeIsOne) {
  const auto context = TlsContext::Load(server_).value();
  Pair pair(client_, server_);
  for (std::size_t size = 0; size < pair.client.out.size(); ++size) {
    End server{context->Accept(), {}, {}, {}};
    server.Receive(std::span(pair.client.out).first(size));
    ASSERT_TRUE(server.status.ok() && server.out.empty() && !server.stream->established()) << size;
  }
}

TEST_F(Tls, DamagedHandshakeIsRefused) {
  const auto context = TlsContext::Load(server_).value();
  for (std::size_t at = 0;; at += at < 60 ? 1 : 7) {
    Pair pair(client_, server_);
    if (at >= pair.client.out.size()) break;
    if (at == 1 || at == 2) continue;  // a record's version, which nobody reads (RFC 8446 §5.1)
    pair.client.out[at] ^= std::byte{1};
    pair.Carry();
    ASSERT_FALSE(pair.server.stream->established()) << at;
    ASSERT_TRUE(pair.server.plain.empty() && pair.client.plain.empty());
  }
}

TEST_F(Tls, DamagedRecordIsRefused) {
  for (std::size_t at = 0; at < 5 + 20 + 17; ++at) {
    Pair pair(client_, server_);
    pair.Carry();
    ASSERT_TRUE(pair.client.stream->Send(Bytes(20), &pair.client.out).ok());
    ASSERT_EQ(pair.client.out.size(), 5u + 20 + 17);
    pair.client.out[at] ^= std::byte{0x40};
    pair.server.Receive(pair.client.out);
    pair.server.Receive(Bytes(16 << 10));  // a length that grew waits for more
    ASSERT_FALSE(pair.server.status.ok()) << at;
    ASSERT_TRUE(pair.server.plain.empty()) << at;
  }
}

// Records that are left out or come twice.
TEST_F(Tls, RecordsHaveAnOrder) {
  Pair pair(client_, server_);
  pair.Carry();
  Bytes first, second;
  ASSERT_TRUE(pair.client.stream->Send(Bytes(20), &first).ok());
  ASSERT_TRUE(pair.client.stream->Send(Bytes(20), &second).ok());
  pair.server.Receive(second);
  EXPECT_FALSE(pair.server.status.ok());
  EXPECT_TRUE(pair.server.plain.empty());
}

// B14, fault 24
TEST_F(Tls, OtherProtocols) {
  const auto context = TlsContext::Load(server_).value();
  for (const std::string text :
       {"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n", "LYNX frames begin otherwise", "SSH-2.0-OpenSSH_9.2\r\n"}) {
    End server{context->Accept(), {}, {}, {}};
    server.Receive(ToBytes(text));
    EXPECT_THAT(server.status.message(), HasSubstr("does not speak TLS")) << text;
    EXPECT_TRUE(server.plain.empty());
  }
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    End server{context->Accept(), {}, {}, {}}, client{context->Connect("localhost"), {}, {}, {}};
    client.Receive({});
    Bytes garbage = RandomBytes(random.Below(3000), &random);
    const Bytes header = ToBytes("\x16\x03\x03");  // half of them look like a handshake
    if (seed % 2 == 0) std::copy_n(header.begin(), std::min(header.size(), garbage.size()), garbage.begin());
    server.Receive(garbage);
    client.Receive(garbage);
    ASSERT_FALSE(server.stream->established() || client.stream->established()) << seed;
    ASSERT_TRUE(server.plain.empty() && client.plain.empty()) << seed;
  }
}

// B14: a ClientHello that announces 100 kB, in records as they should be.
TEST_F(Tls, HandshakeHasALimit) {
  const auto context = TlsContext::Load(server_).value();
  End server{context->Accept(), {}, {}, {}};
  std::size_t fed = 0;
  for (int record = 0; server.status.ok() && record < 100; ++record) {
    Bytes bytes(5 + 1000, std::byte{0});
    bytes[0] = std::byte{22}, bytes[1] = std::byte{3}, bytes[2] = std::byte{1};
    bytes[3] = std::byte{1000 >> 8}, bytes[4] = std::byte{1000 & 0xff};
    if (record == 0) bytes[5] = std::byte{1}, bytes[6] = std::byte{1}, bytes[7] = std::byte{0x86};
    fed += bytes.size();
    server.Receive(bytes);
  }
  EXPECT_EQ(server.status.code(), ErrorCode::kLimit) << server.status.ToString();
  EXPECT_LE(fed, kMaxTlsHandshakeBytes + 1005);
}

Status HandshakeOf(const TlsOptions& client, const TlsOptions& server, std::string_view host, Status* at_client) {
  Pair pair(client, server, host);
  pair.Carry();
  *at_client = pair.client.status;
  EXPECT_EQ(pair.server.status.ok() && pair.client.status.ok(), pair.server.stream->established());
  return pair.server.status;
}

// Fault 24: on either side a bad certificate is told by both.
TEST_F(Tls, WrongCertificates) {
  CertificateFolder other;
  const std::int64_t now = ValidForDays(0).to_s;
  struct Case {
    TlsOptions bad;
    std::string here, there;
  };
  const std::vector<Case> cases = {
      {other.Make("localhost"), "unable to get local issuer certificate", "unknown CA"},
      {folder_.Make("localhost", {}, {now - 7200, now - 3600}, "old"), "certificate has expired",
       "certificate expired"},
      {folder_.Make("localhost", {}, {now + 3600, now + 7200}, "new"), "certificate is not yet valid",
       "bad certificate"},
  };
  for (Case one : cases) {
    one.bad.ca_file = server_.ca_file;  // it would accept the other one
    Status at_client;
    const Status at_server = HandshakeOf(one.bad, server_, "localhost", &at_client);
    EXPECT_THAT(at_server.message(), HasSubstr(one.here));
    EXPECT_THAT(at_client.message(), HasSubstr("refuses this node's certificate"));
    EXPECT_THAT(at_client.message(), HasSubstr(one.there));
    const Status again = HandshakeOf(client_, one.bad, "localhost", &at_client);
    EXPECT_THAT(at_client.message(), HasSubstr(one.here));
    EXPECT_THAT(again.message(), HasSubstr(one.there));
  }
}

TEST_F(Tls, Names) {
  struct Case {
    std::string name;
    std::vector<std::string> allow;
    bool good;
  };
  const Case cases[] = {
      {"decode", {}, true},
      {"decode", {"decode"}, true},
      {"decode", {"prefill", "DECODE"}, true},
      {"decode", {"prefill"}, false},
      {"decode", {"decod"}, false},
      {"decode", {"*"}, false},
      {"decode", {""}, false},
      {"a.lynx.internal", {"*.lynx.internal"}, true},
      {"a.b.lynx.internal", {"*.lynx.internal"}, false},
      {"lynx.internal", {"*.lynx.internal"}, false},
      {"evillynx.internal", {"*.lynx.internal"}, false},
      {"a.lynx.internal", {"a.*.internal"}, false},
      {"10.0.0.7", {"10.0.0.7"}, true},
      {"10.0.0.7", {"10.0.0.8"}, false},
      {"::1", {"::1"}, true},
      {"spiffe://cluster/decode", {"spiffe://cluster/decode"}, true},
      {"spiffe://cluster/decode", {"spiffe://cluster/Decode"}, false},
      {"spiffe://cluster/decode", {"spiffe://cluster/"}, false},
      {"spiffe://cluster/decode", {"decode"}, false},
  };
  for (const Case& one : cases) {
    TlsOptions server = server_;
    server.allow = one.allow;
    Status at_client;
    const Status status =
        HandshakeOf(folder_.Make(one.name, {}, ValidForDays(1), "peer"), server, "localhost", &at_client);
    EXPECT_EQ(status.ok(), one.good) << one.name << ": " << status.ToString();
    if (!one.good) {
      EXPECT_THAT(status.message(), HasSubstr("it is for " + one.name));
    }
  }
}

// Who is connected to: by the host, or by the list if there is one.
TEST_F(Tls, HostOrList) {
  struct Case {
    std::string name, host;
    std::vector<std::string> allow;
    bool good;
  };
  const Case cases[] = {
      {"prefill.lan", "prefill.lan", {}, true},
      {"prefill.lan", "PREFILL.lan", {}, true},
      {"prefill.lan", "10.0.0.7", {}, false},
      {"10.0.0.7", "10.0.0.7", {}, true},
      {"10.0.0.7", "10.0.0.70", {}, false},
      {"prefill.lan", "other.lan", {}, false},
      {"prefill.lan", "lan", {}, false},
      {"localhost", "", {}, true},
      {"prefill", "10.0.0.7", {"prefill"}, true},
      {"prefill", "prefill", {"other"}, false},
      {"spiffe://a/b", "x", {"spiffe://a/b"}, true},
      {"spiffe://a/b", "a", {}, false},
  };
  for (const Case& one : cases) {
    TlsOptions client = client_;
    client.allow = one.allow;
    Status at_client;
    (void)HandshakeOf(client, folder_.Make(one.name, {}, ValidForDays(1), "peer"), one.host, &at_client);
    EXPECT_EQ(at_client.ok(), one.good) << one.name << " at " << one.host << ": " << at_client.ToString();
  }
}

TEST_F(Tls, NamesThatCanNotBe) {
  const KeyAndCertificate authority = MakeAuthority(ValidForDays(1));
  for (const std::string name : {"", "a b", "a,DNS:b", "a\nb", "*.lan", "spiffe://a,URI:b", "\xc3\xa4"}) {
    EXPECT_EQ(MakeCertificate(authority, name, ValidForDays(1)).status().code(), ErrorCode::kInvalid) << name;
  }
  EXPECT_EQ(MakeCertificate(authority, std::string(300, 'a'), ValidForDays(1)).status().code(), ErrorCode::kInvalid);
  const KeyAndCertificate mixed{authority.certificate, MakeAuthority(ValidForDays(1)).key};
  EXPECT_THAT(MakeCertificate(mixed, "a", ValidForDays(1)).status().message(), HasSubstr("do not belong together"));
}

TEST_F(Tls, FilesThatCanNotBe) {
  const auto load = [&](std::string TlsOptions::*file, const std::string& path) {
    TlsOptions options = server_;
    options.*file = folder_.Path(path);
    return TlsContext::Load(options).status();
  };
  folder_.Write("empty", "");
  folder_.Write("encrypted.key",
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIBAzBeBgkq\n-----END ENCRYPTED PRIVATE KEY-----\n");
  folder_.Write("cut.pem", "-----BEGIN CERTIFICATE-----\nMIIBAzBeBgkq\n");
  folder_.Write("huge", std::string((1 << 20) + 1, ' '));
  for (const auto file : {&TlsOptions::cert_file, &TlsOptions::key_file, &TlsOptions::ca_file}) {
    EXPECT_EQ(load(file, "missing").code(), ErrorCode::kIo);
    EXPECT_EQ(load(file, "empty").code(), ErrorCode::kInvalid);
    EXPECT_EQ(load(file, "cut.pem").code(), ErrorCode::kInvalid);
    EXPECT_EQ(load(file, "huge").code(), ErrorCode::kLimit);
    EXPECT_THAT(load(file, "missing").message(), HasSubstr("missing"));
  }
  EXPECT_THAT(load(&TlsOptions::key_file, "encrypted.key").message(), HasSubstr("without a passphrase"));
  EXPECT_THAT(load(&TlsOptions::key_file, "client.key").message(), HasSubstr("is not the key of"));
}

TEST_F(Tls, FilesAreReadAgain) {
  const auto context = TlsContext::Load(server_).value();
  EXPECT_FALSE(context->Refresh().value());
  const auto name_seen = [&] {
    TlsOptions strict = client_;
    strict.allow = {"nobody"};
    const auto client_context = TlsContext::Load(strict).value();
    End client{client_context->Connect("x"), {}, {}, {}}, server{context->Accept(), {}, {}, {}};
    client.Receive({});
    server.Receive(client.out);
    client.Receive(server.out);
    return client.status.message();
  };
  EXPECT_THAT(name_seen(), HasSubstr("it is for localhost"));
  folder_.Make("renewed", {}, ValidForDays(1), "localhost");
  EXPECT_TRUE(context->Refresh().value());
  EXPECT_THAT(name_seen(), HasSubstr("it is for renewed"));
  folder_.Write("localhost.key", "half a k");
  EXPECT_FALSE(context->Refresh().ok());
  EXPECT_TRUE(context->Refresh().ok()) << "an error is told once";
  EXPECT_THAT(name_seen(), HasSubstr("it is for renewed"));
  folder_.Make("again", {}, ValidForDays(1), "localhost");
  EXPECT_TRUE(context->Refresh().value());
  EXPECT_THAT(name_seen(), HasSubstr("it is for again"));
}

TEST(CheckProtected, OnlyLoopbackIsPlain) {
  for (const std::string address : {"127.0.0.1:7000", "127.9.8.7:1", "localhost:7000", "[::1]:7000"}) {
    EXPECT_TRUE(CheckProtected(address, {}).ok()) << address;
  }
  for (const std::string address : {"0.0.0.0:7000", ":7000", "10.0.0.1:7000", "[::]:7000", "localhost.evil:7000",
                                    "128.0.0.1:7000", "127.0.0.1.evil:7000"}) {
    EXPECT_EQ(CheckProtected(address, {}).code(), ErrorCode::kInvalid) << address;
    EXPECT_THAT(CheckProtected(address, {}).message(), HasSubstr("lynx certs"));
    TlsOptions plaintext, tls;
    plaintext.plaintext = true;
    tls.cert_file = "a.pem";
    EXPECT_TRUE(CheckProtected(address, plaintext).ok() && CheckProtected(address, tls).ok()) << address;
  }
}

}  // namespace
}  // namespace lynx
