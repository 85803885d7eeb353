// A throw-away certificate authority: what `lynx certs` and the tests need, no more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lynx/result.h"

namespace lynx {

// PEM; the key is an ECDSA P-256 key without a passphrase.
struct KeyAndCertificate {
  std::string certificate;
  std::string key;
};

// Seconds since 1970, UTC.
struct Validity {
  std::int64_t from_s = 0;
  std::int64_t to_s = 0;
};
// From an hour ago, as clocks differ, for so many days.
Validity ValidForDays(int days);

KeyAndCertificate MakeAuthority(const Validity& validity);

// A node's certificate, for both sides of a connection. `name` is its only name: a DNS name, an IP address or a URI
// ("spiffe://cluster/prefill"). kInvalid when it is none of them or the authority's files are not what MakeAuthority
// gave.
Result<KeyAndCertificate> MakeCertificate(const KeyAndCertificate& authority, std::string_view name,
                                          const Validity& validity);

}  // namespace lynx
