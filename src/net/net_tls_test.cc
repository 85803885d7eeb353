// Nodes that speak TLS over loopback, and who must not get in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "net/certificate_folder_test.h"
#include "net/recording_node_test.h"

namespace lynx {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class NetTls : public ::testing::Test {
 protected:
  NetOptions Prefill(const TlsOptions& tls) {
    NetOptions options = Options(NodeRole::kPrefill);
    options.tls = tls;
    options.log = [this](std::string_view line) {
      const std::lock_guard lock(log_mutex_);
      log_.emplace_back(line);
    };
    return options;
  }
  NetOptions Decode(const TlsOptions& tls) {
    NetOptions options = Options(NodeRole::kDecode);
    options.tls = tls;
    return options;
  }
  std::vector<std::string> log() {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }
  // False when no line with these words has come within ten seconds.
  bool Logged(const std::string& words) {
    for (int i = 0; i < 1000; ++i) {
      for (const std::string& line : log()) {
        if (line.find(words) != std::string::npos) return true;
      }
      poll(nullptr, 0, 10);
    }
    return false;
  }
  static void RunRequest(Node* decode, PeerId peer) {
    const int before = decode->finished;
    decode->SendRequest(peer);
    EXPECT_TRUE(decode->Wait([&] { return decode->finished == before + 1; }));
    EXPECT_TRUE(decode->last_finish.ok()) << decode->last_finish.ToString();
  }
  // Nothing of the peer got as far as the TransferNode.
  static void ExpectUntouched(Node* node) {
    node->net->Call([&](TransferNode&, TimeNs) { EXPECT_EQ(node->up + node->down, 0); });
  }

  CertificateFolder folder_;
  const TlsOptions prefill_ = folder_.Make("prefill", {"decode"});
  const TlsOptions decode_ = folder_.Make("decode", {"prefill"});

 private:
  std::mutex log_mutex_;
  std::vector<std::string> log_;
};

TEST_F(NetTls, Transfers) {
  Node prefill(Prefill(prefill_), 40, 100'000);
  Node decode(Decode(decode_));
  const PeerId peer = decode.Connect(prefill).value();
  ASSERT_TRUE(decode.Wait([&] { return decode.up == 1; }));
  for (int i = 1; i <= 3; ++i) {
    RunRequest(&decode, peer);
    EXPECT_EQ(decode.bytes, std::uint64_t(i) * 4'000'000);
  }
  EXPECT_EQ(prefill.net->stats().handshakes, 0);
  EXPECT_EQ(prefill.net->stats().refused, 0u);
  prefill.net.reset();
  EXPECT_TRUE(decode.Wait([&] { return decode.down == 1; }));
}

// Fault 24: refused by the node that listens. Its TransferNode never hears of them, the peer gets the reason.
TEST_F(NetTls, BadCertificatesDoNotGetIn) {
  CertificateFolder other;
  const std::int64_t now = ValidForDays(0).to_s;
  std::vector<TlsOptions> bad = {other.Make("decode"), folder_.Make("decode", {}, {now - 7200, now - 3600}, "expired"),
                                 folder_.Make("someone", {})};
  const std::vector<std::string> reasons = {"unable to get local issuer certificate", "certificate has expired",
                                            "it is for someone, which --tls-allow does not name"};
  Node prefill(Prefill(prefill_));
  for (std::size_t i = 0; i < bad.size(); ++i) {
    bad[i].allow = {"prefill"};
    bad[i].ca_file = decode_.ca_file;
    Node decode(Decode(bad[i]));
    ASSERT_TRUE(decode.Connect(prefill).ok());
    ASSERT_TRUE(decode.Wait([&] { return decode.down == 1; }));
    EXPECT_THAT(decode.last_down.message(), HasSubstr("the peer refuses this node's certificate"));
    EXPECT_EQ(decode.up, 0);
    EXPECT_TRUE(Logged(reasons[i])) << reasons[i];
  }
  ExpectUntouched(&prefill);
  EXPECT_EQ(prefill.net->stats().refused, bad.size());
  for (const std::string& line : log()) EXPECT_THAT(line, Not(HasSubstr("PRIVATE")));
}

// Refused by the node that connects: Connect says why.
TEST_F(NetTls, BadCertificatesAreNotConnectedTo) {
  CertificateFolder other;
  TlsOptions stranger = other.Make("prefill");
  stranger.ca_file = prefill_.ca_file;
  Node prefill(Prefill(stranger)), someone(Prefill(folder_.Make("someone")));
  Node decode(Decode(decode_));
  const Status wrong_ca = decode.Connect(prefill).status();
  EXPECT_THAT(wrong_ca.message(), HasSubstr(prefill.net->listen_address() + ": the peer's certificate is refused"));
  const Status wrong_name = decode.Connect(someone).status();
  EXPECT_THAT(wrong_name.message(), HasSubstr("it is for someone"));
  EXPECT_EQ(decode.up + decode.down, 0);
  EXPECT_TRUE(Logged("the peer refuses this node's certificate (unknown CA)"));
}

// Without a list, who is connected to must be the host that was asked for.
TEST_F(NetTls, HostIsChecked) {
  TlsOptions by_host = decode_;
  by_host.allow.clear();
  Node here(Prefill(folder_.Make("127.0.0.1"))), elsewhere(Prefill(folder_.Make("10.0.0.1")));
  Node decode(Decode(by_host));
  EXPECT_TRUE(decode.Connect(here).ok());
  EXPECT_THAT(decode.Connect(elsewhere).status().message(), HasSubstr("it is for 10.0.0.1, not for 127.0.0.1"));
}

// B14: plaintext to a TLS port, a Lynx node and another one.
TEST_F(NetTls, PlaintextIsClosed) {
  Node prefill(Prefill(prefill_));
  // More than is read at once: what explains the end must not be lost by a reset.
  const Fd stranger = ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value();
  const std::vector<std::byte> text(4 << 20, std::byte{'G'});
  for (std::size_t sent = 0; sent < text.size() && WaitWritable(stranger, 5 * kSecondNs);) {
    const auto count = WriteSome(stranger, std::span(text).subspan(sent));
    ASSERT_TRUE(count.ok()) << count.status().ToString();
    sent += *count;
  }
  EXPECT_THAT(ReadToTheEnd(stranger).message(), HasSubstr("closed by the peer"));
  EXPECT_TRUE(Logged("does not speak TLS"));
  Node decode(Options(NodeRole::kDecode));
  ASSERT_TRUE(decode.Connect(prefill).ok());
  EXPECT_TRUE(decode.Wait([&] { return decode.down == 1; }));
  ExpectUntouched(&prefill);
}

TEST_F(NetTls, TlsToAPlaintextPort) {
  Node prefill(Options(NodeRole::kPrefill));
  Node decode(Decode(decode_));
  EXPECT_THAT(decode.Connect(prefill).status().message(), HasSubstr("does not speak TLS"));
}

// B14: silent, slow, and one that leaves.
TEST_F(NetTls, StalledHandshakeIsClosed) {
  NetOptions options = Prefill(prefill_);
  options.handshake_timeout = 300 * kMillisecondNs;
  Node prefill(options);
  const TimeNs begin = MonotonicNow();
  const Fd silent = ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value();
  Fd slow = ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value();
  Status status;
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9);
  for (std::size_t i = 0; status.ok() && MonotonicNow() - begin < 10 * kSecondNs; ++i) {
    const std::byte next = i < hello.size() ? std::byte(hello[i]) : std::byte{0};
    status = WriteSome(slow, std::span(&next, 1)).status();
    poll(nullptr, 0, 20);
  }
  EXPECT_FALSE(status.ok()) << "who sends a byte now and then stays";
  EXPECT_FALSE(ReadToTheEnd(silent).ok());
  const TimeNs took = MonotonicNow() - begin;
  EXPECT_GE(took, options.handshake_timeout);
  EXPECT_LE(took, options.handshake_timeout + 2 * kSecondNs);
  EXPECT_TRUE(Logged("nothing more came in time during the TLS handshake"));
  { const Fd leaves = ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value(); }
  for (int i = 0; i < 500 && prefill.net->stats().connections > 0; ++i) poll(nullptr, 0, 10);
  EXPECT_EQ(prefill.net->stats().connections, 0);
  EXPECT_EQ(prefill.net->stats().refused, 3u);
  ExpectUntouched(&prefill);
}

// B15, P4: 200 connections at once that say nothing. Limits hold, who was there before is served, and once the storm is
// over others get in again.
TEST_F(NetTls, ConnectStorm) {
  NetOptions options = Prefill(prefill_);
  options.max_connections = 30;
  options.max_handshakes = 10;
  options.handshake_timeout = 1500 * kMillisecondNs;
  Node prefill(options, 40, 100'000);
  Node decode(Decode(decode_)), late(Decode(decode_));
  const PeerId peer = decode.Connect(prefill).value();
  ASSERT_TRUE(decode.Wait([&] { return decode.up == 1; }));
  std::vector<Fd> storm;
  for (int i = 0; i < 200; ++i) {
    storm.push_back(ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value());
    if (i % 50 == 25) RunRequest(&decode, peer);
  }
  RunRequest(&decode, peer);
  EXPECT_EQ(decode.down, 0);
  NetStats stats = prefill.net->stats();
  EXPECT_LE(stats.handshakes, options.max_handshakes);
  EXPECT_LE(stats.connections, options.max_connections);
  EXPECT_GE(stats.refused, 150u);
  EXPECT_TRUE(Logged("too many unfinished TLS handshakes"));
  EXPECT_LT(log().size(), 100u) << "the storm fills the log";
  for (int i = 0; i < 1000 && prefill.net->stats().handshakes > 0; ++i) poll(nullptr, 0, 10);
  EXPECT_TRUE(late.Connect(prefill).ok());
  EXPECT_TRUE(late.Wait([&] { return late.up == 1; }));
}

// P4: connections in all, with good certificates.
TEST_F(NetTls, ConnectionsHaveALimit) {
  NetOptions options = Prefill(prefill_);
  options.max_connections = 3;
  Node prefill(options);
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 3; ++i) {
    nodes.push_back(std::make_unique<Node>(Decode(decode_)));
    ASSERT_TRUE(nodes.back()->Connect(prefill).ok());
    ASSERT_TRUE(nodes.back()->Wait([&] { return nodes.back()->up == 1; }));
  }
  Node fourth(Decode(decode_));
  EXPECT_EQ(fourth.Connect(prefill).status().code(), ErrorCode::kIo);
  EXPECT_TRUE(Logged("too many connections"));
  nodes.pop_back();
  ASSERT_TRUE(prefill.Wait([&] { return prefill.down == 1; }));
  EXPECT_TRUE(fourth.Connect(prefill).ok());
}

// The next connection uses new files; one that is there goes on.
TEST_F(NetTls, CertificatesAreReadAgain) {
  TlsOptions by_any_name = decode_;
  by_any_name.allow = {"prefill", "renewed"};
  Node prefill(Prefill(prefill_));
  Node before(Decode(by_any_name)), after(Decode(decode_));
  const std::string address = prefill.net->listen_address();
  const PeerId peer = before.net->Connect(address, kSecondNs).value();
  ASSERT_TRUE(before.Wait([&] { return before.up == 1; }));
  folder_.Make("renewed", {}, ValidForDays(1), "prefill");
  EXPECT_THAT(after.net->Connect(address, kSecondNs).status().message(), HasSubstr("it is for renewed"));
  EXPECT_TRUE(Logged("certificates were read again"));
  RunRequest(&before, peer);
  folder_.Write("prefill.pem", "half a certificate");
  EXPECT_TRUE(before.net->Connect(address, kSecondNs).ok()) << "what was loaded stays in use";
  EXPECT_TRUE(Logged("the old certificates stay in use"));
  // The node that connects reads again, too.
  folder_.Make("nobody", {}, ValidForDays(1), "decode");
  ASSERT_TRUE(before.net->Connect(address, kSecondNs).ok());
  EXPECT_TRUE(before.Wait([&] { return before.down == 1; }));
  EXPECT_TRUE(Logged("it is for nobody"));
}

TEST_F(NetTls, BeyondLoopbackOnlyWithTls) {
  NetOptions options = Options(NodeRole::kPrefill);
  options.listen = "0.0.0.0:0";
  const auto ignore = [](TransferNode&, TransferEvent, TimeNs) {};
  EXPECT_EQ(NetNode::Start(options, ignore).status().code(), ErrorCode::kInvalid);
  options.tls.plaintext = true;
  EXPECT_TRUE(NetNode::Start(options, ignore).ok());
  options.tls = prefill_;
  EXPECT_TRUE(NetNode::Start(options, ignore).ok());
  options.tls.key_file = folder_.Path("missing.key");
  EXPECT_THAT(NetNode::Start(options, ignore).status().message(), HasSubstr("missing.key"));
  Node decode(Options(NodeRole::kDecode));
  EXPECT_EQ(decode.net->Connect("192.0.2.1:7000", kSecondNs).status().code(), ErrorCode::kInvalid);
}

// Wrong bytes inside the encryption are the TransferNode's business, as without.
TEST_F(NetTls, MismatchIsToldToBoth) {
  Node prefill(Prefill(prefill_));
  NetOptions other = Decode(decode_);
  other.node.layout[0].value = "other";
  Node decode(other);
  ASSERT_TRUE(decode.Connect(prefill).ok());
  ASSERT_TRUE(decode.Wait([&] { return decode.down == 1; }));
  ASSERT_TRUE(prefill.Wait([&] { return prefill.down == 1; }));
  EXPECT_THAT(decode.last_down.message(), HasSubstr("model differs"));
  EXPECT_THAT(prefill.last_down.message(), HasSubstr("model differs"));
}

}  // namespace
}  // namespace lynx
