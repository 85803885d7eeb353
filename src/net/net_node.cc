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
constexpr TimeNs kAcceptPause = 100 * kMillisecondNs;  // after accept failed (no descriptors left)
// Low water follows the rate: 1 ms of data keeps the link busy between wake-ups, 128 KiB is the knee measured at 1
// Gbit/s.
constexpr std::uint32_t kMinLowWater = 128 << 10;
constexpr std::uint32_t kMaxLowWater = 1 << 20;
constexpr TimeNs kRateInterval = 100 * kMillisecondNs;

struct Connection {
  PeerId peer = 0;
  Fd fd;
  std::vector<std::byte> pending;  // taken from the node, not yet by the socket
  std::size_t pending_at = 0;
  bool writable = true;
  bool blocked_in_interval = false;
  std::uint64_t written_in_interval = 0;
  TimeNs interval_start = 0;
  std::uint32_t low_water = kMinLowWater;
  TimeNs close_at = 0;  // once the node wants it closed: when it is, also if the socket takes no more; 0: it does not
};

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
    if (!options_.listen.empty()) {
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
  const TcpOptions& tcp() const { return options_.tcp; }
  bool OnLoopThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  void Post(Task task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    Wake();
  }

  PeerId Adopt(Fd fd, TimeNs now) {
    const PeerId peer = node_.AddPeer(now);
    Connection& connection = connections_[fd.get()];
    connection.peer = peer;
    connection.fd = std::move(fd);
    connection.interval_start = now;
    SetNotSentLowWater(connection.fd, connection.low_water);
    Watch(connection.fd.get(), EPOLLIN, EPOLL_CTL_ADD);
    return peer;
  }

 private:
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
    for (;;) {
      Fd fd = AcceptFrom(listener_, options_.tcp);
      if (fd.valid()) {
        Adopt(std::move(fd), now);
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

  void OnSocket(int fd, std::uint32_t events, TimeNs now) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    if (events & EPOLLOUT) {
      connection.writable = true;
      node_.SetWritable(connection.peer, true, now);
      Watch(fd, EPOLLIN, EPOLL_CTL_MOD);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    for (int i = 0; i < kReadsPerWakeup; ++i) {
      const Result<std::size_t> count = ReadSome(connection.fd, read_buffer_);
      if (!count.ok()) {
        Close(fd, count.status(), now);
        return;
      }
      if (*count == 0) return;
      node_.Feed(connection.peer, std::span(read_buffer_).first(*count), now);
      if (*count < read_buffer_.size()) return;
    }
  }

  void Close(int fd, Status why, TimeNs now) {
    const auto found = connections_.find(fd);
    const PeerId peer = found->second.peer;
    connections_.erase(found);
    node_.RemovePeer(peer, std::move(why), now);
  }

  // Gives every socket what it takes. A peer's turn can free another's higher streams, so go round until nothing moves.
  void Pump(TimeNs now) {
    bool moved = true;
    while (moved) {
      moved = false;
      std::vector<int> broken;
      for (auto& [fd, connection] : connections_) {
        const Result<bool> progress = PumpOne(connection, now);
        const bool over = node_.WantsClose(connection.peer);
        if (over && connection.close_at == 0) connection.close_at = now + kCloseLinger;
        if (!progress.ok() || (over && (connection.pending.empty() || now >= connection.close_at))) {
          broken.push_back(fd);
          continue;
        }
        moved = moved || *progress;
      }
      for (int fd : broken) Close(fd, IoError("connection closed"), now);
    }
  }

  // One budget's worth for one socket; true if bytes moved.
  Result<bool> PumpOne(Connection& connection, TimeNs now) {
    if (!connection.writable) return false;
    if (connection.pending.empty()) node_.Output(connection.peer, kWriteBudget, now, &connection.pending);
    if (connection.pending.empty()) return false;
    const auto rest = std::span<const std::byte>(connection.pending).subspan(connection.pending_at);
    LYNX_ASSIGN_OR_RETURN(const std::size_t count, WriteSome(connection.fd, rest));
    connection.pending_at += count;
    connection.written_in_interval += count;
    if (count < rest.size()) {
      connection.writable = false;
      connection.blocked_in_interval = true;
      node_.SetWritable(connection.peer, false, now);
      Watch(connection.fd.get(), EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    } else {
      connection.pending.clear();
      connection.pending_at = 0;
    }
    FollowRate(connection, now);
    return count > 0;
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
  std::unordered_map<int, Connection> connections_;
  std::vector<std::byte> read_buffer_;
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
  LYNX_ASSIGN_OR_RETURN(Fd fd, ConnectTo(address, timeout, impl_->tcp()));
  PeerId peer = 0;
  Call([this, &fd, &peer](TransferNode&, TimeNs now) { peer = impl_->Adopt(std::move(fd), now); });
  return peer;
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
