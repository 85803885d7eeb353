// Owners of OpenSSL's objects, for tls.cc and certificates.cc.
#pragma once

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <memory>

namespace lynx {

template <auto kFree>
struct FreedBy {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using BioPtr = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using ContextPtr = std::unique_ptr<SSL_CTX, FreedBy<SSL_CTX_free>>;
using CertificatePtr = std::unique_ptr<X509, FreedBy<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, FreedBy<X509_EXTENSION_free>>;
using NamesPtr = std::unique_ptr<GENERAL_NAMES, FreedBy<GENERAL_NAMES_free>>;

// A key with a passphrase is an error, never a question on the terminal.
inline int NoPassphrase(char*, int, int, void*) { return -1; }

}  // namespace lynx
