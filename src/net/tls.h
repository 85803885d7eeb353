// Mutual TLS 1.3 between nodes, without sockets: bytes and time stay outside. What is checked and which limits hold is
// in docs/protocol.md. OpenSSL is known to tls.cc and certificates.cc only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/result.h"

struct ssl_st;
struct ssl_ctx_st;

namespace lynx {

inline constexpr std::size_t kMaxTlsRecordBytes = 16 << 10;  // plaintext of a record, RFC 8446 §5.1
// What a peer may send before it has proved who it is. A chain of four RSA-4096 certificates is half of it.
inline constexpr std::size_t kMaxTlsHandshakeBytes = 16 << 10;
// Sending keys change after this much; AES-GCM may protect 2^24.5 records, 380 GiB (RFC 8446 §5.5).
inline constexpr std::uint64_t kTlsKeyBytes = 64 << 20;

struct TlsOptions {
  // PEM files. All empty: no TLS.
  std::string cert_file;  // this node's certificate, then those between it and the CA
  std::string key_file;   // its key, without a passphrase
  std::string ca_file;    // the CAs whose certificates peers may show
  // Names of peers. One of those in a peer's certificate (DNS name, IP address, URI) must be here: exactly, or as
  // "*.suffix" with one label for the star. Empty: whoever connects may have any certificate of the CA, and who is
  // connected to must have one for the host that was asked for.
  std::vector<std::string> allow;
  bool plaintext = false;  // without TLS, not only loopback may be used

  bool enabled() const { return !cert_file.empty(); }
};

// kInvalid, saying what to do, when a node with these options may not listen on or connect to the address.
Status CheckProtected(std::string_view address, const TlsOptions& options);

// One connection's TLS. Errors are kIo with the reason and final; what `out` has got then (an alert) explains it to the
// peer.
class TlsStream {
 public:
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;
  ~TlsStream();

  // Bytes from the peer, split anywhere; none at all begins the handshake. Appends what they say to `plain`, which
  // gets nothing before the handshake is over, and what the peer must get to `out`. kLimit when the handshake is longer
  // than kMaxTlsHandshakeBytes, or for more than that in answers while nothing is sent.
  Status Receive(std::span<const std::byte> bytes, std::vector<std::byte>* plain, std::vector<std::byte>* out);
  // Once established: appends `plain` to `out` as records of at most kMaxTlsRecordBytes.
  Status Send(std::span<const std::byte> plain, std::vector<std::byte>* out);
  // The handshake is over: the peer's certificate is good. On the connecting side the peer may still refuse this
  // node's; the first Receive after it tells.
  bool established() const { return established_; }

 private:
  friend class TlsContext;
  friend struct TlsCallbacks;
  TlsStream(ssl_ctx_st* context, bool accepts, std::vector<std::string> allow, std::string host);
  Status Handshake();
  Status Failure(int outcome);

  ssl_st* ssl_ = nullptr;
  const bool accepts_;
  const std::vector<std::string> allow_;
  const std::string host_;  // to be in the certificate when allow_ is empty; empty: any
  std::span<const std::byte> in_;
  std::vector<std::byte>* out_ = nullptr;
  bool established_ = false;
  std::size_t handshake_bytes_ = 0;  // received before it was established
  std::size_t answer_bytes_ = 0;     // written by Receive since the last Send
  std::uint64_t key_bytes_ = 0;      // sent with this key
  std::string refused_;              // why the peer's certificate is
};

// The files of TlsOptions, loaded. Streams keep what they began with. For one thread.
class TlsContext {
 public:
  // kIo when a file can't be read, kInvalid when it holds something else, naming the file.
  static Result<std::unique_ptr<TlsContext>> Load(const TlsOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Loads the files again if they have changed; true if so. On an error, told once per change, what was loaded stays in
  // use.
  Result<bool> Refresh();

  std::unique_ptr<TlsStream> Accept() const;
  // `host`: what was asked for, a name or an address.
  std::unique_ptr<TlsStream> Connect(std::string_view host) const;

 private:
  explicit TlsContext(const TlsOptions& options) : options_(options) {}
  const TlsOptions options_;
  ssl_ctx_st* context_ = nullptr;
  std::string version_;  // of the files, as far as the file system tells
};

}  // namespace lynx
