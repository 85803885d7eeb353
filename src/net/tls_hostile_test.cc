// Peers that OpenSSL can play and Lynx never is, against a TlsStream that accepts. Fault 24.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "net/certificate_folder_test.h"
#include "net/openssl_pointers.h"
#include "net/tls.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

class TlsHostile : public ::testing::Test {
 protected:
  TlsHostile()
      : context_(TlsContext::Load(folder_.Make("localhost")).value()), peer_(SSL_CTX_new(TLS_client_method())) {
    const TlsOptions files = folder_.Make("client");
    SSL_CTX_use_certificate_file(peer_.get(), files.cert_file.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(peer_.get(), files.key_file.c_str(), SSL_FILETYPE_PEM);
  }
  ~TlsHostile() override { SSL_free(ssl_); }

  // A new connection; the peer is what was made of peer_.
  void Connect() {
    SSL_free(ssl_);
    ssl_ = SSL_new(peer_.get());
    to_peer_ = BIO_new(BIO_s_mem());
    from_peer_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_, to_peer_, from_peer_);
    SSL_set_connect_state(ssl_);
    stream_ = context_->Accept();
    status_ = Ok();
    for (int round = 0; round < 4; ++round) {
      if (SSL_do_handshake(ssl_) == 1) peer_established_ = true;
      Carry();
    }
  }
  void Carry() {
    char buffer[1 << 14];
    for (int count; (count = BIO_read(from_peer_, buffer, sizeof buffer)) > 0;) {
      if (!status_.ok()) continue;
      status_ = stream_->Receive(std::as_bytes(std::span(buffer, std::size_t(count))), &plain_, &out_);
    }
    if (!out_.empty()) BIO_write(to_peer_, out_.data(), int(out_.size()));
    answered_ += out_.size();
    out_.clear();
  }

  CertificateFolder folder_;
  std::unique_ptr<TlsContext> context_;
  ContextPtr peer_;
  SSL* ssl_ = nullptr;
  BIO *to_peer_ = nullptr, *from_peer_ = nullptr;  // of ssl_
  std::unique_ptr<TlsStream> stream_;
  bool peer_established_ = false;
  Status status_;
  Bytes plain_, out_;
  std::size_t answered_ = 0;
};

TEST_F(TlsHostile, AnHonestOneIsTaken) {
  Connect();
  EXPECT_TRUE(status_.ok() && stream_->established()) << status_.ToString();
  EXPECT_STREQ(SSL_get_version(ssl_), "TLSv1.3");
}

TEST_F(TlsHostile, WithoutACertificate) {
  peer_.reset(SSL_CTX_new(TLS_client_method()));
  Connect();
  EXPECT_FALSE(stream_->established());
  EXPECT_THAT(status_.message(), HasSubstr("the peer has no certificate"));
}

TEST_F(TlsHostile, OlderVersions) {
  SSL_CTX_set_max_proto_version(peer_.get(), TLS1_2_VERSION);
  Connect();
  EXPECT_FALSE(stream_->established() || peer_established_);
  EXPECT_THAT(status_.message(), HasSubstr("unsupported protocol"));
}

TEST_F(TlsHostile, NoSessionToResume) {
  SSL_CTX_set_session_cache_mode(peer_.get(), SSL_SESS_CACHE_CLIENT);
  Connect();
  ASSERT_TRUE(stream_->established());
  char byte;
  EXPECT_LE(SSL_read(ssl_, &byte, 1), 0);
  SSL_SESSION* session = SSL_get1_session(ssl_);
  EXPECT_FALSE(SSL_SESSION_is_resumable(session)) << "a ticket was sent";
  EXPECT_EQ(SSL_SESSION_get_max_early_data(session), 0u);
  SSL_SESSION_free(session);
}

// Each request for new keys is answered; a peer that never reads can't make the answers pile up.
TEST_F(TlsHostile, KeyUpdatesWithoutEnd) {
  Connect();
  ASSERT_TRUE(stream_->established());
  answered_ = 0;
  int updates = 0;
  for (; status_.ok() && updates < 10'000; ++updates) {
    SSL_key_update(ssl_, SSL_KEY_UPDATE_REQUESTED);
    SSL_write(ssl_, "x", 1);
    Carry();
    char byte;
    (void)SSL_read(ssl_, &byte, 1);
  }
  EXPECT_EQ(status_.code(), ErrorCode::kLimit) << status_.ToString();
  EXPECT_GT(updates, 100);
  EXPECT_LE(answered_, kMaxTlsHandshakeBytes + 100);
}

}  // namespace
}  // namespace lynx
