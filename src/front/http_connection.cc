// cpp-httplib reads heads and writes responses. Sockets, time and limits are ours, because the library has no limit for
// the length of a line, waits by select, and does not tell a handler that its client has left. So is what tells where a
// request ends, because the library guesses: what a proxy in front reads differently lets one request hide in another.
#include "front/http_connection.h"

#include <httplib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <span>

#include "base/status_macros.h"

namespace lynx {
namespace {

constexpr std::size_t kMaxHeadBytes = 64 << 10;
// A client that still sends when its request is refused sees the response only if what it sends is read.
constexpr std::size_t kMaxLingerBytes = 64 << 20;
constexpr TimeNs kLingerNs = 2 * kSecondNs;
constexpr std::size_t kMaxChunkLine = 1024;  // a size and extensions, which are ignored

// Whether a head has the form of RFC 9112, as far as readers of it could differ: lines end with CRLF, names of fields
// are tokens with the colon right behind them, values have no control characters.
class HeadForm {
 public:
  bool Takes(char c) {
    if (std::exchange(in_end_, c == '\r' && !in_end_)) {
      at_ = At::kLineStart;
      return c == '\n';
    }
    if (c == '\r') return at_ != At::kName;
    if (at_ == At::kLineStart)
      at_ = At::kName;
    else if (at_ == At::kName && c == ':')
      at_ = At::kText;
    const auto byte = static_cast<unsigned char>(c);
    if (at_ == At::kText) return c == '\t' || c == ':' || (byte >= 0x20 && byte != 0x7f);
    return std::isalnum(byte) != 0 || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  }

 private:
  enum class At { kText, kLineStart, kName };
  At at_ = At::kText;  // the request line is text
  bool in_end_ = false;
};

// The library's server does one connection: it asks this object for bytes (Stream) and is asked one request at a time.
class LibraryConnection final : public HttpConnection, private httplib::Server, private httplib::Stream {
 public:
  LibraryConnection(Fd fd, const HttpLimits& limits, const HttpHandlers* handlers)
      : fd_(std::move(fd)), limits_(limits), handlers_(handlers) {
    svr_sock_ = 0;  // "is not shutting down"
    keep_alive_max_count_ = std::size_t(limits_.requests_per_connection);
    keep_alive_timeout_sec_ = limits_.idle / kSecondNs;
    payload_max_length_ = limits_.body_bytes;
    using Request = httplib::Request;
    using Response = httplib::Response;
    set_error_handler(HandlerWithResponse([this](const Request&, Response& response) { return OnError(&response); }));
    set_exception_handler([this](const Request&, Response& response, std::exception_ptr) {
      response.status = 500;
      OnError(&response);
    });
    set_expect_100_continue_handler([this](const Request&, Response& response) { return OnExpect(&response); });
    set_pre_routing_handler([this](const Request&, Response& response) {
      Put(handlers_->answer(*target_), &response);
      return HandlerResponse::Handled;
    });
  }

  void Serve() override {
    for (int i = 0; i < limits_.requests_per_connection && !close_ && AwaitRequest(); ++i) {
      begun_ = MonotonicNow();
      head_left_ = kMaxHeadBytes;
      head_form_ = {};
      malformed_ = false;
      target_.reset();
      bool last = false;
      const bool sent = process_request(*this, false, last, [this](httplib::Request& request) { TakeHead(&request); });
      if (!sent && malformed_) return Refuse(400);  // in its first line, where the library says nothing
      if (!sent || last || !target_) break;
    }
    Linger();
  }

  void Refuse(int status) override {
    const HttpResponse said = handlers_->refuse(status);
    const std::string text = "HTTP/1.1 " + std::to_string(status) + " Refused\r\nContent-Type: " + said.content_type +
                             "\r\nContent-Length: " + std::to_string(said.body.size()) +
                             "\r\nConnection: close\r\n\r\n" + said.body;
    (void)WriteSome(fd_, std::as_bytes(std::span(text)));
    Linger();
  }

  void End() override { EndReading(fd_); }

 private:
  // What the handler sees of a request.
  class Target final : public HttpRequest {
   public:
    Target(LibraryConnection* connection, const httplib::Request& request)
        : connection_(connection),
          method_(request.method),
          path_(request.path),
          knows_chunks_(request.version != "HTTP/1.0"),
          headers_(request.headers) {}
    const std::string& method() const override { return method_; }
    const std::string& path() const override { return path_; }
    std::string Header(const std::string& name) const override {
      const auto found = headers_.find(name);
      return found == headers_.end() ? std::string() : found->second;
    }
    std::size_t Count(const std::string& name) const { return headers_.count(name); }
    bool Has(const std::string& name) const { return Count(name) > 0; }
    bool knows_chunks() const { return knows_chunks_; }
    Result<std::string> Body() override { return connection_->ReadBody(); }
    bool ClientLeft() const override { return PeerLeft(connection_->fd_); }

   private:
    LibraryConnection* const connection_;
    const std::string method_, path_;
    const bool knows_chunks_;
    const httplib::Headers headers_;
  };

  // --- a request ---

  bool AwaitRequest() { return unread().size() > 0 || (WaitReadable(fd_, limits_.idle) && Fill()); }

  // The head is complete. What the library would do with some of it is not wanted: parts of responses, compressed ones,
  // forms, and regular expressions over whatever path a client sends.
  void TakeHead(httplib::Request* request) {
    head_left_ = std::nullopt;
    target_.emplace(this, *request);
    request->path = "/";
    request->ranges.clear();
    for (const char* name : {"Range", "Accept-Encoding", "Content-Type"}) request->headers.erase(name);
    // A body that nobody reads would be taken for the next request.
    close_ = target_->Has("Content-Length") || target_->Has("Transfer-Encoding");
  }

  // Whether the body may come, before it does: the status to refuse it with, or 0.
  int BodyRefusal() const {
    if (target_->Has("Content-Encoding")) return 415;
    if (target_->Count("Transfer-Encoding") + target_->Count("Content-Length") > 1) return 400;
    const bool chunked = target_->Has("Transfer-Encoding");
    if (chunked && target_->Header("Transfer-Encoding") != "chunked") return 400;
    const std::string length = target_->Header("Content-Length");
    if (chunked) return 0;
    if (length.empty() || length.find_first_not_of("0123456789") != std::string::npos) return 411;
    return length.size() > 15 || std::stoull(length) > limits_.body_bytes ? 413 : 0;
  }

  int OnExpect(httplib::Response* response) {
    response->status = BodyRefusal();
    if (response->status != 0) return response->status;
    response->status = -1;  // not answered yet
    return 100;
  }

  Result<std::string> ReadBody() {
    close_ = true;
    const int refusal = BodyRefusal();
    if (refusal == 413) return TooLong();
    if (refusal == 415) return Invalid("the request's body is compressed; send it as it is");
    if (refusal != 0) return Invalid("the length of the request's body is not clear");
    std::string body;
    LYNX_RETURN_IF_ERROR(target_->Has("Transfer-Encoding")
                             ? ReadChunks(&body)
                             : ReadBytes(std::stoull(target_->Header("Content-Length")), &body));
    close_ = false;
    return body;
  }

  // Appends so many bytes.
  Status ReadBytes(std::size_t count, std::string* body) {
    if (count > limits_.body_bytes - body->size()) return TooLong();
    std::array<char, 16 << 10> piece;
    while (count > 0) {
      const ssize_t got = read(piece.data(), std::min(count, piece.size()));
      if (got <= 0) return Malformed();
      body->append(piece.data(), std::size_t(got));
      count -= std::size_t(got);
    }
    return Ok();
  }

  Status ReadChunks(std::string* body) {
    for (;;) {
      LYNX_ASSIGN_OR_RETURN(const std::string line, ReadLine());
      std::size_t size = 0;
      const char* const end = line.data() + line.size();
      const auto [digits_end, error] = std::from_chars(line.data(), end, size, 16);
      if (error != std::errc() || (digits_end != end && *digits_end != ';')) return Malformed();
      LYNX_RETURN_IF_ERROR(ReadBytes(size, body));
      LYNX_ASSIGN_OR_RETURN(const std::string nothing, ReadLine());  // behind the last chunk: trailers are not taken
      if (!nothing.empty()) return Malformed();
      if (size == 0) return Ok();
    }
  }

  // Without its CRLF.
  Result<std::string> ReadLine() {
    std::string line;
    while (!line.ends_with("\r\n")) {
      char c;
      if (line.size() > kMaxChunkLine || read(&c, 1) <= 0) return Malformed();
      if (c == '\n' && !line.ends_with('\r')) return Malformed();
      line += c;
    }
    line.resize(line.size() - 2);
    return line;
  }

  Status Malformed() const { return Invalid("the request's body ends early or is not well-formed"); }

  Status TooLong() const {
    return LimitExceeded("the request's body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
  }

  void Put(HttpResponse from, httplib::Response* to) {
    to->status = from.status;
    for (const auto& [name, value] : from.headers) to->set_header(name, value);
    const bool chunked = from.stream && target_->knows_chunks();
    if (from.stream && !chunked) close_ = true;  // the end of the connection is that of the body
    if (close_) to->set_header("Connection", "close");
    if (!from.stream) return to->set_content(from.body, from.content_type);
    httplib::ContentProviderWithoutLength pieces = [stream = std::move(from.stream)](std::size_t,
                                                                                     httplib::DataSink& sink) {
      bool there = true;
      stream([&](std::string_view bytes) {
        // A piece without bytes would end the body.
        return there = there && (bytes.empty() || sink.write(bytes.data(), bytes.size()));
      });
      if (there) sink.done();
      return there;
    };
    if (chunked) return to->set_chunked_content_provider(from.content_type, std::move(pieces));
    to->set_content_provider(from.content_type, std::move(pieces));
  }

  // The library itself refuses; what a handler answered has a body already.
  HandlerResponse OnError(httplib::Response* response) {
    if (!response->body.empty()) return HandlerResponse::Unhandled;
    close_ = true;
    Put(handlers_->refuse(response->status), response);
    return HandlerResponse::Handled;
  }

  // --- httplib::Stream ---

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !PeerLeft(fd_); }
  socket_t socket() const override { return 0; }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}

  ssize_t read(char* into, std::size_t size) override {
    while (unread().empty()) {
      const TimeNs left = begun_ + limits_.read - MonotonicNow();
      if (left <= 0 || !WaitReadable(fd_, left) || !Fill()) return -1;
    }
    std::size_t count = std::min(size, unread().size());
    if (head_left_) {
      count = std::min(count, *head_left_);
      if (count == 0) return -1;
      *head_left_ -= count;
      malformed_ = !std::ranges::all_of(unread().substr(0, count), [this](char c) { return head_form_.Takes(c); });
      if (malformed_) return -1;
    }
    std::copy_n(unread().begin(), count, into);
    at_ += count;
    return ssize_t(count);
  }

  ssize_t write(const char* from, std::size_t size) override {
    for (;;) {
      const Result<std::size_t> count = WriteSome(fd_, std::as_bytes(std::span(from, size)));
      if (!count.ok()) return -1;
      if (*count > 0 || size == 0) return ssize_t(*count);
      if (!WaitWritable(fd_, limits_.write)) return -1;
    }
  }

  // --- bytes ---

  std::string_view unread() const { return std::string_view(buffer_.data() + at_, end_ - at_); }

  // False at the end of the connection.
  bool Fill() {
    const Result<std::size_t> count = ReadSome(fd_, std::as_writable_bytes(std::span(buffer_)));
    if (!count.ok()) return false;
    at_ = 0;
    end_ = *count;
    return true;
  }

  void Linger() {
    EndWriting(fd_);
    const TimeNs end = MonotonicNow() + kLingerNs;
    for (std::size_t read = 0; read < kMaxLingerBytes; read += end_) {
      const TimeNs left = end - MonotonicNow();
      if (left <= 0 || !WaitReadable(fd_, left) || !Fill()) break;
    }
  }

  Fd fd_;
  const HttpLimits limits_;
  const HttpHandlers* const handlers_;

  std::array<char, 16 << 10> buffer_;
  std::size_t at_ = 0, end_ = 0;  // what of it was not read yet

  TimeNs begun_ = 0;
  std::optional<std::size_t> head_left_;  // bytes that the head may still have; nothing behind it
  HeadForm head_form_;
  bool malformed_ = false;        // the head is
  std::optional<Target> target_;  // of the current request, once its head is complete
  bool close_ = false;            // after this request
};

}  // namespace

std::unique_ptr<HttpConnection> MakeHttpConnection(Fd socket, const HttpLimits& limits, const HttpHandlers* handlers) {
  return std::make_unique<LibraryConnection>(std::move(socket), limits, handlers);
}

}  // namespace lynx
