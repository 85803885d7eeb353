#include "front/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace lynx {
namespace {

constexpr std::string_view kBearer = "Bearer ";
constexpr std::size_t kMaxKeys = 10000;

template <std::size_t N>
bool ParseHex(std::string_view digits, std::array<std::uint8_t, N>* bytes) {
  if (digits.size() != 2 * N) return false;
  for (std::size_t i = 0; i < N; ++i) {
    const char* begin = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, (*bytes)[i], 16);
    if (error != std::errc() || end != begin + 2) return false;
  }
  return true;
}

}  // namespace

Result<ApiKeys> ApiKeys::Parse(std::string_view text) {
  ApiKeys keys;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    Hash hash;
    if (!ParseHex(line.substr(0, line.find(' ')), &hash)) {
      return Invalid("line " + std::to_string(number) +
                     " does not begin with 64 hex digits; make one with: printf %s KEY | sha256sum");
    }
    if (keys.hashes_.size() == kMaxKeys) return LimitExceeded("more than " + std::to_string(kMaxKeys) + " keys");
    keys.hashes_.push_back(hash);
  }
  if (keys.hashes_.empty()) return Invalid("there is no key in it; make one with: printf %s KEY | sha256sum");
  return keys;
}

// Hashes of different keys differ anywhere, so how far a comparison gets would tell nothing useful; it is constant all
// the same, and every key is compared.
bool ApiKeys::Accept(std::string_view authorization) const {
  if (!authorization.starts_with(kBearer)) return false;
  const std::string_view key = authorization.substr(kBearer.size());
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  bool accepted = false;
  for (const Hash& known : hashes_) accepted |= CRYPTO_memcmp(known.data(), hash.data(), hash.size()) == 0;
  return accepted;
}

}  // namespace lynx
