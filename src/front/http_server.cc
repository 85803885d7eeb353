#include "front/http_server.h"

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/status_macros.h"
#include "front/http_connection.h"
#include "net/socket.h"

namespace lynx {
namespace {

constexpr TimeNs kAcceptSlice = 500 * kMillisecondNs;

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpLimits& limits, HttpHandlers handlers) : limits_(limits), handlers_(std::move(handlers)) {}
  ~Impl() { Stop(); }

  Status Start(const std::string& listen) {
    LYNX_ASSIGN_OR_RETURN(listener_, ListenOn(listen));
    address_ = LocalAddress(listener_);
    acceptor_ = std::thread([this] { AcceptLoop(); });
    return Ok();
  }

  const std::string& address() const { return address_; }

  void StopListening() {
    stopping_ = true;
    EndReading(listener_);
    const std::lock_guard lock(stop_mutex_);
    if (acceptor_.joinable()) acceptor_.join();
  }

  void Stop() {
    StopListening();
    {
      const std::lock_guard lock(mutex_);
      for (Connection& connection : connections_) connection.http->End();
    }
    // The acceptor has ended: nobody else changes the list.
    for (Connection& connection : connections_) connection.thread.join();
    connections_.clear();
  }

 private:
  struct Connection {
    std::unique_ptr<HttpConnection> http;
    std::thread thread;
    std::atomic<bool> ended = false;
  };

  void AcceptLoop() {
    while (!stopping_) {
      const bool arrived = WaitReadable(listener_, kAcceptSlice);
      Reap();
      if (!arrived || stopping_) continue;
      Fd socket = AcceptFrom(listener_, {});
      if (!socket.valid()) {  // gone again, or the process has no descriptor left
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        continue;
      }
      Begin(std::move(socket));
    }
  }

  void Begin(Fd socket) {
    const std::lock_guard lock(mutex_);
    const int count = int(connections_.size());
    if (count >= 2 * limits_.connections) return;  // a flood: closed without a word
    const bool refused = count >= limits_.connections;
    Connection& connection = connections_.emplace_back();
    connection.http = MakeHttpConnection(std::move(socket), limits_, &handlers_);
    // One that is refused is told so on a thread of its own too, a short one.
    try {
      connection.thread = std::thread([&connection, refused] {
        refused ? connection.http->Refuse(503) : connection.http->Serve();
        connection.ended = true;
      });
    } catch (const std::system_error&) {  // the process may have no more threads
      connections_.pop_back();
    }
  }

  void Reap() {
    std::list<Connection> ended;
    {
      const std::lock_guard lock(mutex_);
      for (auto it = connections_.begin(); it != connections_.end();) {
        const auto next = std::next(it);
        if (it->ended) ended.splice(ended.end(), connections_, it);
        it = next;
      }
    }
    for (Connection& connection : ended) connection.thread.join();
  }

  const HttpLimits limits_;
  const HttpHandlers handlers_;
  Fd listener_;
  std::string address_;
  std::atomic<bool> stopping_ = false;
  std::mutex stop_mutex_;
  std::thread acceptor_;
  std::mutex mutex_;
  std::list<Connection> connections_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen, const HttpLimits& limits,
                                                      HttpHandlers handlers) {
  auto impl = std::make_unique<Impl>(limits, std::move(handlers));
  LYNX_RETURN_IF_ERROR(impl->Start(listen));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const std::string& HttpServer::address() const { return impl_->address(); }
void HttpServer::StopListening() { impl_->StopListening(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace lynx
