#include "front/http_get.h"

#include <httplib.h>

#include <charconv>
#include <cstdint>

#include "base/status_macros.h"
#include "net/socket.h"

namespace lynx {
namespace {

constexpr time_t kTimeoutSeconds = 3;
constexpr std::size_t kMaxBody = 1 << 20;

}  // namespace

Result<std::string> HttpGet(const std::string& address, const std::string& path, const std::string& key) {
  LYNX_ASSIGN_OR_RETURN(const Address at, ParseAddress(address));
  std::uint16_t port = 0;
  std::from_chars(at.port.data(), at.port.data() + at.port.size(), port);
  if (port == 0) return Invalid("\"" + address + "\" has no port; give HOST:PORT");
  httplib::Client client(at.host, port);
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  if (!key.empty()) client.set_bearer_token_auth(key);
  std::string body;
  const auto response = client.Get(path, [&body](const char* data, std::size_t size) {
    body.append(data, size);
    return body.size() <= kMaxBody;
  });
  if (!response) return IoError("nothing answers at " + address + " (" + httplib::to_string(response.error()) + ")");
  if (response->status == 401) return Unsupported(address + " wants an API key: give it in LYNX_API_KEY");
  if (response->status != 200) {
    return Unsupported(address + path + " answers with status " + std::to_string(response->status) +
                       "; is it the address of `lynx decode` or `lynx serve`?");
  }
  return body;
}

}  // namespace lynx
