// One client's connection.
#pragma once

#include <memory>

#include "front/http_server.h"
#include "net/socket.h"

namespace lynx {

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // Answers requests until the client leaves, a limit is reached or End was called.
  virtual void Serve() = 0;
  // Says why there is no answer, and closes.
  virtual void Refuse(int status) = 0;
  // From any thread: to Serve it is as if the client had left.
  virtual void End() = 0;
};

// `handlers` outlives it.
std::unique_ptr<HttpConnection> MakeHttpConnection(Fd socket, const HttpLimits& limits, const HttpHandlers* handlers);

}  // namespace lynx
