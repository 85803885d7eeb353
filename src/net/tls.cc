#include "net/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "net/openssl_pointers.h"
#include "net/socket.h"

namespace lynx {
namespace {

constexpr std::size_t kMaxPemBytes = 1 << 20;
constexpr int kMaxChain = 8;                      // certificates between a peer's and the CA
constexpr std::size_t kMaxShownNames = 200;       // bytes of a peer's names in a message
constexpr int kAlertBase = SSL_AD_REASON_OFFSET;  // OpenSSL's reason for a received alert: this plus its number

// --- files ---

Result<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxPemBytes + 1, '\0');
  file.read(text.data(), std::streamsize(text.size()));
  if (!file.is_open() || file.bad()) return IoError("can't read " + path + ": " + std::strerror(errno));
  if (file.gcount() > std::streamsize(kMaxPemBytes)) return LimitExceeded(path + " has more than 1 MiB");
  text.resize(std::size_t(file.gcount()));
  return text;
}

BioPtr Memory(const std::string& text) { return BioPtr(BIO_new_mem_buf(text.data(), int(text.size()))); }

Result<std::vector<CertificatePtr>> ReadCertificates(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(const std::string text, ReadPem(path));
  const BioPtr bio = Memory(text);
  std::vector<CertificatePtr> list;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) list.emplace_back(one);
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (list.empty() || !at_end) return Invalid(path + " is not a PEM file of certificates; `lynx certs` makes them");
  return list;
}

Result<KeyPtr> ReadKey(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(std::string text, ReadPem(path));
  KeyPtr key(PEM_read_bio_PrivateKey(Memory(text).get(), nullptr, NoPassphrase, nullptr));
  OPENSSL_cleanse(text.data(), text.size());
  ERR_clear_error();
  if (!key) return Invalid(path + " is not a PEM file of a key without a passphrase; `lynx certs` makes them");
  return key;
}

// Changes with every rewrite of a file that the file system notices.
std::string VersionOf(const TlsOptions& options) {
  std::string version;
  for (const std::string* path : {&options.cert_file, &options.key_file, &options.ca_file}) {
    struct stat status {};
    if (stat(path->c_str(), &status) != 0) status = {};
    for (const auto number : {std::int64_t(status.st_mtim.tv_sec), std::int64_t(status.st_mtim.tv_nsec),
                              std::int64_t(status.st_size), std::int64_t(status.st_ino)}) {
      version += std::to_string(number) + ' ';
    }
  }
  return version;
}

// --- names ---

std::string Text(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)), std::size_t(ASN1_STRING_length(string))};
}

std::vector<std::string> NamesOf(const X509* certificate) {
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> list;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS) list.push_back(Text(name->d.dNSName));
    if (name->type == GEN_URI) list.push_back(Text(name->d.uniformResourceIdentifier));
    if (name->type == GEN_IPADD) {
      const std::string bytes = Text(name->d.iPAddress);
      char text[INET6_ADDRSTRLEN] = "";
      if (bytes.size() == 4 || bytes.size() == 16) {
        inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
        list.emplace_back(text);
      }
    }
  }
  return list;
}

// The letters of DNS names have no case, those of a URI do.
bool SameName(std::string_view a, std::string_view b) {
  if (a.find("://") != std::string_view::npos) return a == b;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 'a' - 'A') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

bool IsAllowed(std::string_view name, std::string_view pattern) {
  if (!pattern.starts_with("*.")) return SameName(name, pattern);
  const auto dot = name.find('.');
  return dot != std::string_view::npos && dot > 0 && SameName(name.substr(dot), pattern.substr(1));
}

bool IsForHost(X509* certificate, const std::string& host) {
  constexpr unsigned kFlags = X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS;
  return X509_check_ip_asc(certificate, host.c_str(), 0) == 1 ||
         X509_check_host(certificate, host.data(), host.size(), kFlags, nullptr) == 1;
}

// Why the names don't do; empty if they do.
std::string Refusal(X509* certificate, const std::vector<std::string>& allow, const std::string& host) {
  const std::vector<std::string> names = NamesOf(certificate);
  if (allow.empty() && (host.empty() || IsForHost(certificate, host))) return "";
  for (const std::string& pattern : allow) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return IsAllowed(name, pattern); })) return "";
  }
  std::string shown;
  for (const std::string& name : names) shown += (shown.empty() ? "" : ", ") + name;
  if (shown.size() > kMaxShownNames) shown.resize(kMaxShownNames);
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  const std::string it_is = "it is for " + (shown.empty() ? "no name" : shown);
  return allow.empty() ? it_is + ", not for " + host + "; connect by a name in it or give --tls-allow"
                       : it_is + ", which --tls-allow does not name";
}

}  // namespace

// What OpenSSL calls back; the stream hangs at the connection and at its BIO.
struct TlsCallbacks {
  static int Read(BIO* bio, char* into, int size) {
    auto& in = static_cast<TlsStream*>(BIO_get_data(bio))->in_;
    BIO_clear_retry_flags(bio);
    if (in.empty()) {
      BIO_set_retry_read(bio);
      return -1;
    }
    const std::size_t count = std::min(in.size(), std::size_t(size));
    std::memcpy(into, in.data(), count);
    in = in.subspan(count);
    return int(count);
  }

  static int Write(BIO* bio, const char* from, int size) {
    auto* out = static_cast<TlsStream*>(BIO_get_data(bio))->out_;
    const auto bytes = std::as_bytes(std::span(from, std::size_t(size)));
    BIO_clear_retry_flags(bio);
    out->insert(out->end(), bytes.begin(), bytes.end());
    return size;
  }

  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lynx");
      BIO_meth_set_read(made, Read);
      BIO_meth_set_write(made, Write);
      BIO_meth_set_ctrl(made, Control);
      return made;
    }();
    return method;
  }

  // From the CA down; the peer's own certificate is last, and by then all else about it is good.
  static int Verify(int good, X509_STORE_CTX* store) {
    auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* stream = static_cast<TlsStream*>(SSL_get_app_data(ssl));
    if (!good) {
      stream->refused_ = X509_verify_cert_error_string(X509_STORE_CTX_get_error(store));
      return 0;
    }
    if (X509_STORE_CTX_get_error_depth(store) > 0) return 1;
    stream->refused_ = Refusal(X509_STORE_CTX_get_current_cert(store), stream->allow_, stream->host_);
    if (stream->refused_.empty()) return 1;
    X509_STORE_CTX_set_error(store, X509_V_ERR_HOSTNAME_MISMATCH);
    return 0;
  }
};

Status CheckProtected(std::string_view address, const TlsOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  if (options.enabled() || options.plaintext || IsLoopback(parsed.host)) return Ok();
  return Invalid(std::string(address) +
                 " is not loopback and would not be encrypted; give --tls-cert, --tls-key and --tls-ca (`lynx certs` "
                 "makes the files), or --plaintext on a network that you trust");
}

// --- TlsStream ---

TlsStream::TlsStream(ssl_ctx_st* context, bool accepts, std::vector<std::string> allow, std::string host)
    : ssl_(SSL_new(context)), accepts_(accepts), allow_(std::move(allow)), host_(std::move(host)) {
  BIO* bio = BIO_new(TlsCallbacks::Method());
  LYNX_CHECK(ssl_ != nullptr && bio != nullptr);  // out of memory
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  accepts_ ? SSL_set_accept_state(ssl_) : SSL_set_connect_state(ssl_);
}

TlsStream::~TlsStream() { SSL_free(ssl_); }

Status TlsStream::Receive(std::span<const std::byte> bytes, std::vector<std::byte>* plain,
                          std::vector<std::byte>* out) {
  out_ = out;
  if (!established_) {
    // Only so much reaches OpenSSL, however much came at once.
    in_ = bytes.first(std::min(bytes.size(), kMaxTlsHandshakeBytes - handshake_bytes_));
    const std::size_t given = in_.size();
    LYNX_RETURN_IF_ERROR(Handshake());
    handshake_bytes_ += given - in_.size();
    bytes = bytes.subspan(given - in_.size());
    if (!established_ && handshake_bytes_ >= kMaxTlsHandshakeBytes) {
      return LimitExceeded("the TLS handshake is longer than 16 KiB");
    }
    if (!established_) return Ok();
  }
  in_ = bytes;
  const std::size_t had = out->size();
  std::array<std::byte, kMaxTlsRecordBytes> record;
  for (;;) {
    ERR_clear_error();
    const int count = SSL_read(ssl_, record.data(), int(record.size()));
    if (count <= 0 && SSL_get_error(ssl_, count) == SSL_ERROR_WANT_READ) break;
    if (count <= 0) return Failure(count);
    plain->insert(plain->end(), record.begin(), record.begin() + count);
  }
  // Answers to key updates: a peer that asks for them and reads nothing must not fill the memory.
  answer_bytes_ += out->size() - had;
  return answer_bytes_ <= kMaxTlsHandshakeBytes ? Ok() : LimitExceeded("the peer asks for too many TLS key updates");
}

Status TlsStream::Handshake() {
  ERR_clear_error();
  const int outcome = SSL_do_handshake(ssl_);
  established_ = outcome == 1;
  if (established_ || SSL_get_error(ssl_, outcome) == SSL_ERROR_WANT_READ) return Ok();
  return Failure(outcome);
}

Status TlsStream::Send(std::span<const std::byte> plain, std::vector<std::byte>* out) {
  LYNX_CHECK(established_);
  out_ = out;
  in_ = {};
  answer_bytes_ = 0;
  while (!plain.empty()) {
    const auto record = plain.first(std::min(plain.size(), kMaxTlsRecordBytes));
    ERR_clear_error();
    const int count = SSL_write(ssl_, record.data(), int(record.size()));
    if (count <= 0) return Failure(count);
    plain = plain.subspan(std::size_t(count));
    key_bytes_ += std::uint64_t(count);
    if (key_bytes_ < kTlsKeyBytes) continue;
    key_bytes_ = 0;
    SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  return Ok();
}

// The reason in words. Nothing of what was sent, and no key, is in it.
Status TlsStream::Failure(int outcome) {
  if (SSL_get_error(ssl_, outcome) == SSL_ERROR_ZERO_RETURN) return IoError("connection closed by the peer");
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  ERR_clear_error();
  if (!refused_.empty()) return IoError("the peer's certificate is refused: " + refused_);
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) return IoError("the peer has no certificate");
  if (reason > kAlertBase && reason < kAlertBase + 256) {
    const std::string alert = SSL_alert_desc_string_long(reason - kAlertBase);
    constexpr std::array kAboutCertificates = {SSL_AD_BAD_CERTIFICATE,     SSL_AD_UNSUPPORTED_CERTIFICATE,
                                               SSL_AD_CERTIFICATE_REVOKED, SSL_AD_CERTIFICATE_EXPIRED,
                                               SSL_AD_CERTIFICATE_UNKNOWN, SSL_AD_UNKNOWN_CA,
                                               SSL_AD_CERTIFICATE_REQUIRED};
    const bool certificate = std::ranges::count(kAboutCertificates, reason - kAlertBase) > 0;
    return IoError((certificate ? "the peer refuses this node's certificate (" : "the peer ended TLS (") + alert + ")");
  }
  constexpr std::array kNotTls = {SSL_R_WRONG_VERSION_NUMBER, SSL_R_HTTP_REQUEST, SSL_R_HTTPS_PROXY_REQUEST,
                                  SSL_R_BAD_RECORD_TYPE, SSL_R_PACKET_LENGTH_TOO_LONG};
  if (!established_ && std::ranges::count(kNotTls, reason) > 0) {
    return IoError("the peer does not speak TLS; start both nodes with --tls-cert, or both without");
  }
  const char* text = ERR_reason_error_string(error);
  return IoError(std::string("TLS failed: ") + (text == nullptr ? "connection damaged" : text));
}

// --- TlsContext ---

namespace {

Status UseFiles(SSL_CTX* context, const TlsOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> chain, ReadCertificates(options.cert_file));
  LYNX_ASSIGN_OR_RETURN(const KeyPtr key, ReadKey(options.key_file));
  LYNX_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> authorities, ReadCertificates(options.ca_file));
  const bool used = SSL_CTX_use_certificate(context, chain[0].get()) == 1;
  if (!used) return Invalid(options.cert_file + ": OpenSSL does not accept this certificate; is its key too short?");
  for (std::size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    return Invalid(options.key_file + " is not the key of " + options.cert_file);
  }
  for (const CertificatePtr& one : authorities) X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get());
  ERR_clear_error();
  return Ok();
}

Result<ContextPtr> MakeContext(const TlsOptions& options) {
  ContextPtr context(SSL_CTX_new(TLS_method()));
  if (!context) return IoError("OpenSSL can't be used: " + std::string(ERR_reason_error_string(ERR_get_error())));
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(raw, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // A session that could be resumed would outlive its certificate; early data could be replayed.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(raw, 0);
  SSL_CTX_set_max_cert_list(raw, long(kMaxTlsHandshakeBytes));
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, TlsCallbacks::Verify);
  SSL_CTX_set_verify_depth(raw, kMaxChain);
  LYNX_RETURN_IF_ERROR(UseFiles(raw, options));
  return context;
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::Load(const TlsOptions& options) {
  std::unique_ptr<TlsContext> context(new TlsContext(options));
  LYNX_RETURN_IF_ERROR(context->Refresh().status());
  return context;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

// The version is taken before the files are read: a change in between is one for the next time.
Result<bool> TlsContext::Refresh() {
  std::string version = VersionOf(options_);
  if (version == version_) return false;
  version_ = std::move(version);
  LYNX_ASSIGN_OR_RETURN(ContextPtr context, MakeContext(options_));
  SSL_CTX_free(std::exchange(context_, context.release()));
  return true;
}

std::unique_ptr<TlsStream> TlsContext::Accept() const {
  return std::unique_ptr<TlsStream>(new TlsStream(context_, true, options_.allow, ""));
}

std::unique_ptr<TlsStream> TlsContext::Connect(std::string_view host) const {
  return std::unique_ptr<TlsStream>(
      new TlsStream(context_, false, options_.allow, std::string(host.empty() ? "localhost" : host)));
}

}  // namespace lynx
