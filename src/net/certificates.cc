#include "net/certificates.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/rand.h>

#include <ctime>

#include "base/check.h"
#include "base/status_macros.h"
#include "net/openssl_pointers.h"

namespace lynx {
namespace {

constexpr std::int64_t kDaySeconds = 24 * 3600;
constexpr std::size_t kMaxNameBytes = 253;  // of DNS

std::string TakeText(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, std::size_t(size)};
}

KeyAndCertificate ToPem(X509* certificate, EVP_PKEY* key) {
  const BioPtr certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_mem()));
  LYNX_CHECK(PEM_write_bio_X509(certificate_text.get(), certificate) == 1);
  LYNX_CHECK(PEM_write_bio_PrivateKey(key_text.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return {TakeText(certificate_text.get()), TakeText(key_text.get())};
}

// Version 3, with a random serial number of 64 bits and everything but names, extensions and signature.
CertificatePtr NewCertificate(EVP_PKEY* key, const Validity& validity) {
  CertificatePtr certificate(X509_new());
  std::uint64_t serial = 0;
  LYNX_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), time_t(validity.from_s));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), time_t(validity.to_s));
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

void SetCommonName(X509* certificate, const std::string& name) {
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.data()), int(name.size()), -1, 0);
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509V3_set_ctx_nodb(&context);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  LYNX_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension.get(), -1);
}

// As an extension's value, in which commas and line ends would mean something; kInvalid for what is no name.
Result<std::string> SubjectAltName(std::string_view name) {
  const std::string text(name);
  unsigned char address[16];
  if (inet_pton(AF_INET, text.c_str(), address) == 1 || inet_pton(AF_INET6, text.c_str(), address) == 1) {
    return "IP:" + text;
  }
  const bool is_uri = name.find("://") != std::string_view::npos;
  const std::string_view more = is_uri ? "-._:/%" : "-._";
  for (const char c : name) {
    const bool letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!letter_or_digit && more.find(c) == std::string_view::npos) name = "";
  }
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Invalid("\"" + text + "\" can't be a node's name; give a DNS name, an IP address or a URI");
  }
  return (is_uri ? "URI:" : "DNS:") + text;
}

}  // namespace

Validity ValidForDays(int days) {
  const std::int64_t now = std::time(nullptr);
  return {now - 3600, now + days * kDaySeconds};
}

KeyAndCertificate MakeAuthority(const Validity& validity) {
  const KeyPtr key(EVP_EC_gen("P-256"));
  LYNX_CHECK(key != nullptr);
  const CertificatePtr certificate = NewCertificate(key.get(), validity);
  // Two authorities never share a name, so that a wrong one is called unknown.
  std::uint64_t serial = 0;
  ASN1_INTEGER_get_uint64(&serial, X509_get_serialNumber(certificate.get()));
  SetCommonName(certificate.get(), "Lynx throw-away CA " + std::to_string(serial));
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  AddExtension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash");
  LYNX_CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) != 0);
  return ToPem(certificate.get(), key.get());
}

Result<KeyAndCertificate> MakeCertificate(const KeyAndCertificate& authority, std::string_view name,
                                          const Validity& validity) {
  LYNX_ASSIGN_OR_RETURN(const std::string alt_name, SubjectAltName(name));
  const BioPtr issuer_text(BIO_new_mem_buf(authority.certificate.data(), int(authority.certificate.size())));
  const BioPtr issuer_key_text(BIO_new_mem_buf(authority.key.data(), int(authority.key.size())));
  const CertificatePtr issuer(PEM_read_bio_X509(issuer_text.get(), nullptr, NoPassphrase, nullptr));
  const KeyPtr issuer_key(PEM_read_bio_PrivateKey(issuer_key_text.get(), nullptr, NoPassphrase, nullptr));
  if (!issuer || !issuer_key || X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    ERR_clear_error();
    return Invalid("the CA's certificate and key are damaged or do not belong together");
  }
  const KeyPtr key(EVP_EC_gen("P-256"));
  LYNX_CHECK(key != nullptr);
  const CertificatePtr certificate = NewCertificate(key.get(), validity);
  SetCommonName(certificate.get(), "Lynx node");
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
  AddExtension(certificate.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(certificate.get(), issuer.get(), NID_key_usage, "critical,digitalSignature");
  AddExtension(certificate.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  AddExtension(certificate.get(), issuer.get(), NID_authority_key_identifier, "keyid:always");
  AddExtension(certificate.get(), issuer.get(), NID_subject_alt_name, alt_name);
  LYNX_CHECK(X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()) != 0);
  return ToPem(certificate.get(), key.get());
}

}  // namespace lynx
