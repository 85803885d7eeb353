#include "net/link_emulator.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <deque>
#include <list>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "net/socket.h"

namespace lynx {
namespace {

// Data moves in pieces of this size at most, so that connections share the link fairly and smoothly.
constexpr std::size_t kPieceBytes = 16 << 10;
// Sockets of the emulator hold little: what waits, waits at the sender.
constexpr int kSocketBufferBytes = 64 << 10;
constexpr int kRoundsPerWakeup = 64;
constexpr TimeNs kConnectTimeout = 5 * kSecondNs;
// Links beyond this are not emulated: one thread copies about this much, and what is under way has to be kept.
constexpr double kMaxBitRate = 1e11;

struct Piece {
  TimeNs due = 0;
  std::vector<std::byte> bytes;
  std::size_t at = 0;
};

// The bottleneck of one direction.
struct Bottleneck {
  TimeNs free_at = 0;
  std::size_t queued = 0;  // read, not yet through the bottleneck
};

// One direction of one connection.
struct Flow {
  const Fd* from = nullptr;
  const Fd* to = nullptr;
  Bottleneck* bottleneck = nullptr;
  std::deque<Piece> pieces;
  bool ended = false;  // nothing more comes from `from`
  bool told = false;   // … and `to` knows
  bool Done() const { return ended && pieces.empty(); }
};

struct Pair {
  Fd near, far;
  Flow up, down;
  bool broken = false;
};

}  // namespace

class LinkEmulator::Impl {
 public:
  explicit Impl(const LinkOptions& options) : options_(options) {
    const auto buffer = std::max<std::size_t>(64 << 10, std::size_t(options_.bits_per_second / 8 * 0.004));
    // What travels during the delay is beyond the bottleneck, but is kept in the same place.
    const double kept_rate = options_.bits_per_second > 0 ? options_.bits_per_second : kMaxBitRate;
    capacity_ = buffer + std::size_t(kept_rate / 8 * double(options_.delay) / double(kSecondNs));
    tcp_.receive_buffer_bytes = options_.bits_per_second > 0 ? kSocketBufferBytes : 0;
  }
  ~Impl() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    LYNX_ASSIGN_OR_RETURN(listener_, ListenOn(options_.listen));
    LYNX_RETURN_IF_ERROR(ParseAddress(options_.to).status());
    listen_address_ = LocalAddress(listener_);
    thread_ = std::thread([this] { Loop(); });
    return Ok();
  }
  const std::string& listen_address() const { return listen_address_; }

 private:
  void Loop() {
    while (!stopping_) {
      WaitForWork();
      Accept();
      bool moved = true;
      for (int round = 0; moved && round < kRoundsPerWakeup; ++round) {
        moved = false;
        for (Pair& pair : pairs_) {
          moved |= Move(pair, pair.up);
          moved |= Move(pair, pair.down);
        }
      }
      pairs_.remove_if([](const Pair& pair) {
        if (!pair.broken && !(pair.up.Done() && pair.down.Done())) return false;
        for (const Flow* flow : {&pair.up, &pair.down}) {
          for (const Piece& piece : flow->pieces) flow->bottleneck->queued -= piece.bytes.size();
        }
        return true;
      });
    }
  }

  void WaitForWork() {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    const TimeNs now = MonotonicNow();
    TimeNs wait = 50 * kMillisecondNs;
    for (Pair& pair : pairs_) {
      for (Flow* flow : {&pair.up, &pair.down}) {
        if (MayRead(*flow)) polled.push_back({flow->from->get(), POLLIN, 0});
        if (flow->pieces.empty()) continue;
        if (flow->pieces.front().due > now) {
          wait = std::min(wait, flow->pieces.front().due - now);
        } else {
          polled.push_back({flow->to->get(), POLLOUT, 0});
        }
      }
    }
    timespec timeout{0, wait};
    ppoll(polled.data(), polled.size(), &timeout, nullptr);
  }

  bool MayRead(const Flow& flow) const { return !flow.ended && flow.bottleneck->queued < capacity_; }

  void Accept() {
    for (;;) {
      Fd near = AcceptFrom(listener_, tcp_);
      if (!near.valid()) return;
      Result<Fd> far = ConnectTo(options_.to, kConnectTimeout, tcp_);
      if (!far.ok()) continue;  // the near side sees its connection close
      Pair& pair = pairs_.emplace_back();
      pair.near = std::move(near);
      pair.far = std::move(*far);
      pair.up = {&pair.near, &pair.far, &up_, {}, false};
      pair.down = {&pair.far, &pair.near, &down_, {}, false};
    }
  }

  // Reads one piece and writes what is due; true if anything moved.
  bool Move(Pair& pair, Flow& flow) {
    bool moved = false;
    const TimeNs now = MonotonicNow();
    if (MayRead(flow)) {
      std::vector<std::byte> buffer(kPieceBytes);
      const Result<std::size_t> count = ReadSome(*flow.from, buffer);
      if (!count.ok()) {
        flow.ended = true;
        moved = true;
      } else if (*count > 0) {
        buffer.resize(*count);
        Enqueue(flow, std::move(buffer), now);
        moved = true;
      }
    }
    while (!flow.pieces.empty() && flow.pieces.front().due <= now) {
      Piece& piece = flow.pieces.front();
      const Result<std::size_t> count = WriteSome(*flow.to, std::span<const std::byte>(piece.bytes).subspan(piece.at));
      if (!count.ok()) {
        pair.broken = true;
        return false;
      }
      piece.at += *count;
      moved |= *count > 0;
      if (piece.at < piece.bytes.size()) break;
      flow.bottleneck->queued -= piece.bytes.size();
      flow.pieces.pop_front();
    }
    if (flow.Done() && !flow.told) {
      EndWriting(*flow.to);
      flow.told = true;
    }
    return moved;
  }

  void Enqueue(Flow& flow, std::vector<std::byte> bytes, TimeNs now) {
    Bottleneck& bottleneck = *flow.bottleneck;
    const double seconds = options_.bits_per_second > 0 ? double(bytes.size()) * 8 / options_.bits_per_second : 0;
    bottleneck.free_at = std::max(bottleneck.free_at, now) + TimeNs(seconds * double(kSecondNs));
    bottleneck.queued += bytes.size();
    flow.pieces.push_back({bottleneck.free_at + options_.delay, std::move(bytes), 0});
  }

  const LinkOptions options_;
  std::size_t capacity_ = 0;
  TcpOptions tcp_;
  Fd listener_;
  std::string listen_address_;
  Bottleneck up_, down_;
  std::list<Pair> pairs_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

LinkEmulator::LinkEmulator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinkEmulator::~LinkEmulator() = default;
const std::string& LinkEmulator::listen_address() const { return impl_->listen_address(); }

Result<std::unique_ptr<LinkEmulator>> LinkEmulator::Start(const LinkOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  LYNX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<LinkEmulator>(new LinkEmulator(std::move(impl)));
}

namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

// A non-negative number followed by one of the units.
Result<double> ParseWithUnit(std::string_view text, std::span<const Unit> units, const char* what,
                             const char* example) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix = text.substr(std::size_t(end - text.data()));
  if (error == std::errc() && value >= 0 && std::isfinite(value)) {
    if (suffix.empty() && value == 0) return 0.0;
    for (const Unit& unit : units) {
      if (suffix == unit.suffix) return value * unit.factor;
    }
  }
  return Invalid("\"" + std::string(text) + "\" is not a " + what + "; write for example " + example);
}

}  // namespace

Result<double> ParseBitRate(std::string_view text) {
  if (text == "unlimited") return 0.0;
  constexpr Unit kUnits[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  LYNX_ASSIGN_OR_RETURN(const double rate, ParseWithUnit(text, kUnits, "bandwidth", "100mbit, 2.5gbit or unlimited"));
  if (rate > kMaxBitRate) return Invalid("\"" + std::string(text) + "\" is more than 100gbit; write unlimited");
  return rate;
}

Result<TimeNs> ParseDuration(std::string_view text) {
  constexpr Unit kUnits[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  LYNX_ASSIGN_OR_RETURN(const double nanoseconds, ParseWithUnit(text, kUnits, "duration", "1ms, 250us or 2s"));
  if (nanoseconds > 1e15) return Invalid("\"" + std::string(text) + "\" is too long a duration");
  return TimeNs(nanoseconds);
}

}  // namespace lynx
