// For tests and evaluation: connections over one bottleneck in virtual time, with what real sockets do to priority in
// between (bytes handed to a socket cannot be overtaken) and TCP's sharing by connection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "lynx/transfer.h"

namespace lynx {

struct LinkOptions {
  double bytes_per_ns = 0.1195;           // 1 Gbit/s Ethernet as TCP sees it
  TimeNs delay_ns = 50'000;               // one way
  std::size_t lowat_bytes = 128 << 10;    // a socket takes bytes while it holds fewer unsent ones
  std::size_t network_bytes = 512 << 10;  // of one connection, in the bottleneck's queue: TCP's congestion window
};

class SimulatedLink {
 public:
  explicit SimulatedLink(const LinkOptions& options) : options_(options) {}

  // Data of `sender` passes the bottleneck; what `receiver` sends back only takes the delay.
  // Returns the peers' numbers: {receiver as the sender knows it, sender as the receiver knows it}.
  std::pair<PeerId, PeerId> Connect(TransferNode* sender, TransferNode* receiver) {
    Connection c;
    c.sender = sender;
    c.receiver = receiver;
    c.at_sender = sender->AddPeer(now_);
    c.at_receiver = receiver->AddPeer(now_);
    connections_.push_back(std::move(c));
    return {connections_.back().at_sender, connections_.back().at_receiver};
  }

  void At(TimeNs when, std::function<void()> what) { agenda_.emplace(when, std::move(what)); }

  // Runs until nothing is left to do before `until`. `serve` is called after every step to take the nodes' events.
  void Run(TimeNs until, const std::function<void()>& serve) {
    while (true) {
      serve();
      Pump();
      const TimeNs timeout = NextTimeout();
      const TimeNs next = agenda_.empty() ? timeout : std::min(timeout, agenda_.begin()->first);
      if (next > until) break;
      now_ = std::max(now_, next);
      if (!agenda_.empty() && agenda_.begin()->first <= now_) {
        const auto what = std::move(agenda_.begin()->second);
        agenda_.erase(agenda_.begin());
        what();
      } else {
        for (Connection& c : connections_) {
          c.sender->Tick(now_);
          c.receiver->Tick(now_);
        }
      }
    }
    now_ = until;
  }

  TimeNs now() const { return now_; }
  // A longer route from now on; a shorter one would reorder what is under way.
  void Lengthen(TimeNs delay_ns) { options_.delay_ns = std::max(options_.delay_ns, delay_ns); }

 private:
  using Segment = std::vector<std::byte>;
  static constexpr std::size_t kSegmentBytes = 8 << 10;

  struct Connection {
    TransferNode* sender = nullptr;
    TransferNode* receiver = nullptr;
    PeerId at_sender = 0;
    PeerId at_receiver = 0;
    std::deque<Segment> socket;
    std::size_t socket_bytes = 0;
    std::size_t network_bytes = 0;
  };

  TimeNs NextTimeout() const {
    TimeNs next = INT64_MAX;
    for (const Connection& c : connections_) {
      next =
          std::min({next, c.sender->NextTimeout().value_or(INT64_MAX), c.receiver->NextTimeout().value_or(INT64_MAX)});
    }
    return next;
  }

  // Moves bytes as far as they go at this moment.
  void Pump() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < connections_.size(); ++i) moved |= FillSocket(i) | SendBack(i) | Transmit(i);
    }
  }

  bool FillSocket(std::size_t i) {
    Connection& c = connections_[i];
    c.sender->SetWritable(c.at_sender, c.socket_bytes < options_.lowat_bytes);
    if (c.socket_bytes >= options_.lowat_bytes) return false;
    std::vector<std::byte> bytes;
    c.sender->Output(c.at_sender, options_.lowat_bytes - c.socket_bytes, now_, &bytes);
    for (std::size_t at = 0; at < bytes.size(); at += kSegmentBytes) {
      const auto end = std::min(bytes.size(), at + kSegmentBytes);
      c.socket.emplace_back(bytes.begin() + std::ptrdiff_t(at), bytes.begin() + std::ptrdiff_t(end));
    }
    c.socket_bytes += bytes.size();
    c.sender->SetWritable(c.at_sender, c.socket_bytes < options_.lowat_bytes);
    return !bytes.empty();
  }

  bool SendBack(std::size_t i) {
    Segment bytes;
    connections_[i].receiver->Output(connections_[i].at_receiver, 1 << 20, now_, &bytes);
    if (bytes.empty()) return false;
    At(now_ + options_.delay_ns,
       [this, i, bytes = std::move(bytes)] { connections_[i].sender->Feed(connections_[i].at_sender, bytes, now_); });
    return true;
  }

  // One segment from the socket into the bottleneck's queue, if the congestion window allows: connections take turns.
  bool Transmit(std::size_t i) {
    Connection& c = connections_[i];
    if (c.socket.empty() || c.network_bytes >= options_.network_bytes) return false;
    Segment segment = std::move(c.socket.front());
    c.socket.pop_front();
    c.socket_bytes -= segment.size();
    c.network_bytes += segment.size();
    free_at_ns_ = std::max(free_at_ns_, now_) + TimeNs(double(segment.size()) / options_.bytes_per_ns);
    At(free_at_ns_ + options_.delay_ns, [this, i, segment = std::move(segment)] {
      connections_[i].network_bytes -= segment.size();
      connections_[i].receiver->Feed(connections_[i].at_receiver, segment, now_);
    });
    return true;
  }

  LinkOptions options_;
  TimeNs now_ = kSecondNs;
  TimeNs free_at_ns_ = 0;  // when the bottleneck has sent all it holds
  std::vector<Connection> connections_;
  std::multimap<TimeNs, std::function<void()>> agenda_;
};

}  // namespace lynx
