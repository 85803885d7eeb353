// HTTP/1.1: requests in, responses out, a thread per connection. What speaks HTTP (cpp-httplib) stays behind this
// header.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lynx/result.h"
#include "lynx/transfer.h"

namespace lynx {

struct HttpLimits {
  int connections = 128;             // more are refused with 503
  std::size_t body_bytes = 8 << 20;  // of a request
  TimeNs idle = 60 * kSecondNs;      // between the requests of a connection
  TimeNs read = 60 * kSecondNs;      // from a request's first byte to its last
  TimeNs write = 30 * kSecondNs;     // without the client taking a byte
  int requests_per_connection = 1000;
};

// A request whose head has been read. Belongs to the thread of its connection.
class HttpRequest {
 public:
  virtual ~HttpRequest() = default;
  virtual const std::string& method() const = 0;
  virtual const std::string& path() const = 0;  // decoded, without the query
  // Empty if there is none.
  virtual std::string Header(const std::string& name) const = 0;
  // Reads the body of a POST; at most once. kLimit when it is too long, kInvalid when it is not well-formed HTTP or the
  // client stopped sending.
  virtual Result<std::string> Body() = 0;
  // The client has closed its side: nobody waits for the response.
  virtual bool ClientLeft() const = 0;
};

// Sends a piece of the body; false when the client has left.
using HttpSend = std::function<bool(std::string_view bytes)>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Instead of `body`: is called once, after the head was sent, and sends it piece by piece.
  std::function<void(const HttpSend&)> stream;
};

struct HttpHandlers {
  // Many threads at once.
  std::function<HttpResponse(HttpRequest&)> answer;
  // What is said to what is no request (400, 413, 414) or can't become one (503).
  std::function<HttpResponse(int status)> refuse;
};

class HttpServer {
 public:
  // kInvalid or kIo with what to do when it can't listen on "host:port".
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& listen, const HttpLimits& limits,
                                                   HttpHandlers handlers);
  ~HttpServer();

  // Where it listens: "127.0.0.1:41234" for a port of 0.
  const std::string& address() const;
  // Takes no new connections.
  void StopListening();
  // Ends all connections, as if every client had left, and waits for their threads.
  void Stop();

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lynx
