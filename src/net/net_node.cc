#include "net/net_node.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace lynx {
namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr int kReadsPerWakeup = 4;              // then others get their turn
constexpr std::size_t kWriteBudget = 64 << 10;  // what is taken from the node at a time: bounds what can't be overtaken
constexpr TimeNs kCloseLinger = kSecondNs;      // for the last bytes of a connection that is over
constexpr int kAcceptsPerWakeup = 64;
constexpr int kMaxLogLines = 10;                       // of refusals, in a second
constexpr TimeNs kAcceptPause = 100 * kMillisecondNs;  // after accept failed (no descriptors left)
// Low water follows the rate: 1 ms of data keeps the link busy between wake-ups, 128 KiB is the knee measured at 1
// Gbit/s.
constexpr std::uint32_t kMinLowWater = 128 << 10;
constexpr std::uint32_t kMaxLowWater = 1 << 20;
constexpr TimeNs kRateInterval = 100 * kMillisecondNs;

using Connected = std::function<void(Result<PeerId>)>;

struct Connection {
  // kRefused: TLS failed; only read so that closing it does not reset the alert that explains it.
  enum class State { kHandshake, kOpen, kRefused };
  State state = State::kHandshake;
  PeerId peer = 0;  // once open: nothing but an authenticated peer reaches the TransferNode
  Fd fd;
  std::unique_ptr<TlsStream> tls;  // null: plaintext
  Connected connected;             // of an outgoing one, until it is open or refused
  std::vector<std::byte> pending;  // taken from the node, not yet by the socket
  std::size_t pending_at = 0;
  bool writable = true;
  bool blocked_in_interval = false;
  std::uint64_t written_in_interval = 0;
  TimeNs interval_start = 0;
  std::uint32_t low_water = kMinLowWater;
  TimeNs close_at = 0;  // whatever is unsent or unfinished then; 0: not
};

std::span<const std::byte> Unsent(const Connection& connection) {
  return std::span(connection.pending).subspan(connection.pending_at);
}

}  // namespace

class NetNode::Impl {
 public:
  Impl(const NetOptions& options, Handler handler)
      : options_(options), handler_(std::move(handler)), node_(options.node), read_buffer_(kReadBytes) {}

  ~Impl() {
    stopping_ = true;
    Wake();
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    if (options_.tls.enabled()) {
      LYNX_ASSIGN_OR_RETURN(tls_, TlsContext::Load(options_.tls));
    }
    if (!options_.listen.empty()) {
      LYNX_RETURN_IF_ERROR(CheckProtected(options_.listen, options_.tls));
      LYNX_ASSIGN_OR_RETURN(listener_, ListenOn(options_.listen));
      listen_address_ = LocalAddress(listener_);
    }
    epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!epoll_.valid() || !wake_.valid()) return IoError("can't create the event loop: out of file descriptors");
    Watch(wake_.get(), EPOLLIN, EPOLL_CTL_ADD);
    if (listener_.valid()) Watch(listener_.get(), EPOLLIN, EPOLL_CTL_ADD);
    thread_ = std::thread([this] { Loop(); });
    return Ok();
  }

  const std::string& listen_address() const { return listen_address_; }
  const NetOptions& options() const { return options_; }
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  void Post(Task task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    Wake();
  }

  NetStats Stats() const { return {int(connections_.size()), Handshakes(), refused_}; }

  // `host`: of an outgoing connection, what was asked for.
  void AddOutgoing(Fd fd, const std::string& host, TimeNs handshake_until, Connected connected, TimeNs now) {
    if (tls_) RefreshTls();
    Adopt(std::move(fd), tls_ ? tls_->Connect(host) : nullptr, std::move(connected), handshake_until, now);
  }

 private:
  using State = Connection::State;

  void Wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  }

  void Watch(int fd, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  int WaitMilliseconds(TimeNs now) {
    std::optional<TimeNs> next = node_.NextTimeout();
    const auto consider = [&next](TimeNs time) {
      if (time != 0) next = std::min(next.value_or(time), time);
    };
    consider(accept_again_);
    for (const auto& [fd, connection] : connections_) consider(connection.close_at);
    if (!next) return -1;
    return int(std::clamp<TimeNs>((*next - now + kMillisecondNs - 1) / kMillisecondNs, 0, 1000));
  }

  void Loop() {
    std::vector<epoll_event> events(64);
    while (!stopping_) {
      const int count = epoll_wait(epoll_.get(), events.data(), int(events.size()), WaitMilliseconds(MonotonicNow()));
      TimeNs now = MonotonicNow();
      for (int i = 0; i < count; ++i) {
        const int fd = events[i].data.fd;
        if (fd == wake_.get()) {
          RunTasks(now);
        } else if (listener_.valid() && fd == listener_.get()) {
          AcceptAll(now);
        } else {
          OnSocket(fd, events[i].events, now);
        }
      }
      now = MonotonicNow();
      if (accept_again_ != 0 && now >= accept_again_) {
        accept_again_ = 0;
        Watch(listener_.get(), EPOLLIN, EPOLL_CTL_MOD);
      }
      node_.Tick(now);
      Deliver(now);
      Pump(now);
      Deliver(now);
    }
  }

  void RunTasks(TimeNs now) {
    std::uint64_t ignored;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &ignored, sizeof ignored);
    std::vector<Task> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    for (Task& task : tasks) task(node_, now);
  }

  void AcceptAll(TimeNs now) {
    for (int i = 0; i < kAcceptsPerWakeup; ++i) {
      Fd fd = AcceptFrom(listener_, options_.tcp);
      if (fd.valid()) {
        AddIncoming(std::move(fd), now);
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // The connection stays in the backlog; looking away for a while beats spinning on it.
        Watch(listener_.get(), 0, EPOLL_CTL_MOD);
        accept_again_ = now + kAcceptPause;
      }
      return;
    }
  }

  void AddIncoming(Fd fd, TimeNs now) {
    if (connections_.size() >= std::size_t(options_.max_connections)) {
      return LogRefusal(fd, LimitExceeded("too many connections"), now);
    }
    if (tls_ && Handshakes() >= options_.max_handshakes) {
      return LogRefusal(fd, LimitExceeded("too many unfinished TLS handshakes"), now);
    }
    if (tls_) RefreshTls();
    Adopt(std::move(fd), tls_ ? tls_->Accept() : nullptr, nullptr, now + options_.handshake_timeout, now);
  }

  void Adopt(Fd fd, std::unique_ptr<TlsStream> tls, Connected connected, TimeNs handshake_until, TimeNs now) {
    Connection& connection = connections_[fd.get()];
    connection.fd = std::move(fd);
    connection.tls = std::move(tls);
    connection.connected = std::move(connected);
    connection.interval_start = now;
    connection.close_at = handshake_until;
    SetNotSentLowWater(connection.fd, connection.low_water);
    Watch(connection.fd.get(), EPOLLIN, EPOLL_CTL_ADD);
    if (!connection.tls) return Open(connection, now);
    if (const Status status = OnBytes(connection, {}, now); !status.ok()) Refuse(connection, status, now);
  }

  void Open(Connection& connection, TimeNs now) {
    connection.state = State::kOpen;
    connection.close_at = 0;
    connection.peer = node_.AddPeer(now);
    if (!connection.writable) node_.SetWritable(connection.peer, false);
    if (connection.connected) std::exchange(connection.connected, nullptr)(connection.peer);
  }

  // The handshake failed.
  void Refuse(Connection& connection, const Status& why, TimeNs now) {
    connection.state = State::kRefused;
    connection.close_at = now + kCloseLinger;
    if (connection.connected) return std::exchange(connection.connected, nullptr)(why);
    LogRefusal(connection.fd, why, now);
  }

  void LogRefusal(const Fd& fd, const Status& why, TimeNs now) {
    ++refused_;
    if (!options_.log) return;
    if (now - log_second_ >= kSecondNs) {
      log_second_ = now;
      logged_ = 0;
    }
    if (logged_ == kMaxLogLines) {
      ++not_logged_;
      return;
    }
    ++logged_;
    const std::string others = not_logged_ == 0 ? "" : " (and " + std::to_string(not_logged_) + " others before)";
    not_logged_ = 0;
    const std::string address = PeerAddress(fd);
    options_.log("refused " + (address.empty() ? "a peer that is gone" : address) + ": " + why.message() + others);
  }

  void RefreshTls() {
    const Result<bool> changed = tls_->Refresh();
    if (!options_.log || (changed.ok() && !*changed)) return;
    options_.log(changed.ok() ? "certificates were read again"
                              : "the old certificates stay in use: " + changed.status().message());
  }

  int Handshakes() const {
    return int(std::ranges::count_if(connections_, [](const auto& each) { return each.second.state != State::kOpen; }));
  }

  void OnSocket(int fd, std::uint32_t events, TimeNs now) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    if (events & EPOLLOUT) {
      connection.writable = true;
      if (connection.state == State::kOpen) node_.SetWritable(connection.peer, true);
      Watch(fd, EPOLLIN, EPOLL_CTL_MOD);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    for (int i = 0; i < kReadsPerWakeup; ++i) {
      const Result<std::size_t> count = ReadSome(connection.fd, read_buffer_);
      if (!count.ok()) return Close(fd, count.status(), now);
      if (*count == 0) return;
      const Status status = OnBytes(connection, std::span(read_buffer_).first(*count), now);
      if (!status.ok() && connection.state == State::kHandshake) return Refuse(connection, status, now);
      if (!status.ok()) return Close(fd, status, now);
      if (*count < read_buffer_.size()) return;
    }
  }

  Status OnBytes(Connection& connection, std::span<const std::byte> bytes, TimeNs now) {
    if (connection.state == State::kRefused) return Ok();
    if (!connection.tls) {
      node_.Feed(connection.peer, bytes, now);
      return Ok();
    }
    plain_.clear();
    const Status status = connection.tls->Receive(bytes, &plain_, &connection.pending);
    if (connection.state == State::kHandshake && connection.tls->established()) Open(connection, now);
    if (!plain_.empty()) node_.Feed(connection.peer, plain_, now);
    return status;
  }

  void Close(int fd, Status why, TimeNs now) {
    Connection connection = std::move(connections_.extract(fd).mapped());
    if (connection.state == State::kOpen) {
      // Perhaps an alert of TLS.
      if (connection.tls) (void)WriteSome(connection.fd, Unsent(connection));
      node_.RemovePeer(connection.peer, std::move(why), now);
    } else if (connection.state == State::kHandshake) {
      Refuse(connection, IoError(why.message() + " during the TLS handshake"), now);
    }
  }

  // Gives every socket what it takes. A peer's turn can free another's higher streams, so go round until nothing moves.
  void Pump(TimeNs now) {
    bool moved = true;
    while (moved) {
      moved = false;
      std::vector<std::pair<int, Status>> broken;
      for (auto& [fd, connection] : connections_) {
        const Result<bool> progress = PumpOne(connection, now);
        if (!progress.ok()) {
          broken.emplace_back(fd, progress.status());
        } else if (IsOver(connection, now)) {
          const bool late = connection.state == State::kHandshake;
          broken.emplace_back(fd, IoError(late ? "nothing more came in time" : "connection closed"));
        } else {
          moved = moved || *progress;
        }
      }
      for (auto& [fd, why] : broken) Close(fd, std::move(why), now);
    }
  }

  bool IsOver(Connection& connection, TimeNs now) {
    const bool unsent = !connection.pending.empty();
    const bool unwanted = connection.state == State::kOpen && node_.WantsClose(connection.peer);
    if (unwanted && connection.close_at == 0) connection.close_at = now + kCloseLinger;
    if (connection.state == State::kRefused && connection.tls && !unsent) {
      EndWriting(connection.fd);
      connection.tls.reset();
    }
    return (unwanted && !unsent) || (connection.close_at != 0 && now >= connection.close_at);
  }

  // One budget's worth for one socket; true if bytes moved.
  Result<bool> PumpOne(Connection& connection, TimeNs now) {
    if (!connection.writable) return false;
    if (connection.pending.empty() && connection.state == State::kOpen) LYNX_RETURN_IF_ERROR(Fill(connection, now));
    if (connection.pending.empty()) return false;
    const auto rest = Unsent(connection);
    LYNX_ASSIGN_OR_RETURN(const std::size_t count, WriteSome(connection.fd, rest));
    connection.pending_at += count;
    connection.written_in_interval += count;
    if (count < rest.size()) {
      connection.writable = false;
      connection.blocked_in_interval = true;
      if (connection.state == State::kOpen) node_.SetWritable(connection.peer, false);
      Watch(connection.fd.get(), EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    } else {
      connection.pending.clear();
      connection.pending_at = 0;
    }
    FollowRate(connection, now);
    return count > 0;
  }

  // What is taken here can't be overtaken any more, with TLS or without: records are cut from what the node gave.
  Status Fill(Connection& connection, TimeNs now) {
    if (!connection.tls) {
      node_.Output(connection.peer, kWriteBudget, now, &connection.pending);
      return Ok();
    }
    plain_.clear();
    node_.Output(connection.peer, kWriteBudget, now, &plain_);
    return connection.tls->Send(plain_, &connection.pending);
  }

  // Only a socket that was full in the interval tells the rate of its path.
  void FollowRate(Connection& connection, TimeNs now) {
    const TimeNs elapsed = now - connection.interval_start;
    if (elapsed < kRateInterval) return;
    if (connection.blocked_in_interval) {
      const double bytes_per_ms = double(connection.written_in_interval) * kMillisecondNs / double(elapsed);
      const auto wanted = std::uint32_t(std::clamp<double>(bytes_per_ms, kMinLowWater, kMaxLowWater));
      if (wanted > connection.low_water + connection.low_water / 4 || wanted < connection.low_water / 2) {
        connection.low_water = wanted;
        SetNotSentLowWater(connection.fd, wanted);
      }
    }
    connection.blocked_in_interval = !connection.writable;
    connection.written_in_interval = 0;
    connection.interval_start = now;
  }

  void Deliver(TimeNs now) {
    while (std::optional<TransferEvent> event = node_.Poll()) handler_(node_, std::move(*event), now);
  }

  const NetOptions options_;
  const Handler handler_;
  TransferNode node_;
  std::string listen_address_;
  Fd epoll_, wake_, listener_;
  TimeNs accept_again_ = 0;
  std::unique_ptr<TlsContext> tls_;  // null: plaintext
  std::unordered_map<int, Connection> connections_;
  std::uint64_t refused_ = 0;
  TimeNs log_second_ = 0;  // when it began
  int logged_ = 0;         // refusals in it
  int not_logged_ = 0;     // refusals since the last line
  std::vector<std::byte> read_buffer_;
  std::vector<std::byte> plain_;  // of one call, with TLS
  std::mutex mutex_;
  std::vector<Task> tasks_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

NetNode::NetNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NetNode::~NetNode() = default;

Result<std::unique_ptr<NetNode>> NetNode::Start(const NetOptions& options, Handler handler) {
  auto impl = std::make_unique<Impl>(options, std::move(handler));
  LYNX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<NetNode>(new NetNode(std::move(impl)));
}

const std::string& NetNode::listen_address() const { return impl_->listen_address(); }

Result<PeerId> NetNode::Connect(const std::string& address, TimeNs timeout) {
  LYNX_CHECK(!impl_->OnLoopThread());
  LYNX_RETURN_IF_ERROR(CheckProtected(address, impl_->options().tls));
  const TimeNs until = MonotonicNow() + timeout;
  LYNX_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  LYNX_ASSIGN_OR_RETURN(Fd fd, ConnectTo(address, timeout, impl_->options().tcp));
  const auto done = std::make_shared<std::promise<Result<PeerId>>>();
  Post([&](TransferNode&, TimeNs now) {
    const TimeNs handshake_until = std::min(until, now + impl_->options().handshake_timeout);
    impl_->AddOutgoing(
        std::move(fd), parsed.host, handshake_until, [done](Result<PeerId> peer) { done->set_value(std::move(peer)); },
        now);
  });
  Result<PeerId> peer = done->get_future().get();
  if (peer.ok()) return peer;
  return Status(peer.status().code(), address + ": " + peer.status().message());
}

NetStats NetNode::stats() {
  NetStats stats;
  Call([&](TransferNode&, TimeNs) { stats = impl_->Stats(); });
  return stats;
}

void NetNode::Post(Task task) { impl_->Post(std::move(task)); }

void NetNode::Call(const Task& task) {
  LYNX_CHECK(!impl_->OnLoopThread());
  std::promise<void> done;
  impl_->Post([&](TransferNode& node, TimeNs now) {
    task(node, now);
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace lynx
