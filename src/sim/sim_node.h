// A node of the simulation: a TransferNode with a clock, timers and connections. It can be stopped, killed and started
// again. Prefill and decode nodes say what its events mean.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lynx/transfer.h"
#include "sim/connection.h"
#include "sim/socket_tap.h"
#include "sim/world.h"

namespace lynx {

class SimNode {
 public:
  // `clock`: what the node's clock shows when the run begins.
  SimNode(World* world, std::string name, NodeRole role, TimeNs clock)
      : world_(world), name_(std::move(name)), role_(role), clock_(clock) {}
  virtual ~SimNode() = default;
  SimNode(const SimNode&) = delete;

  const std::string& name() const { return name_; }
  bool alive() const { return transfer_ != nullptr; }
  bool running() const { return alive() && !stopped_; }
  // This life; every start makes a new one.
  std::uint64_t epoch() const { return epoch_; }

  // --- what happens to it ---
  void Start();
  // `silent`: its host is gone, peers hear nothing.
  void Kill(bool silent);
  void Stop();  // no ticks, no reading, no writing
  void Resume();
  void Attach(Connection* connection);
  void OnBytes(Connection* connection, std::span<const std::byte> bytes);
  void OnEnd(Connection* connection);
  void OnRoom(Connection* connection);

  // Time that it has been stopped.
  TimeNs stopped_ns() const { return stopped_ns_ + (stopped_ ? world_->now() - stopped_at_ : 0); }
  // Everything that is held after all requests are over, as text; empty: nothing.
  virtual std::string Held() const;

 protected:
  virtual NodeConfig Config() const = 0;
  virtual void OnStart() {}
  virtual void OnKilled() = 0;
  virtual void OnEvent(TransferEvent event) = 0;
  virtual void OnPeerGone(Connection* /*connection*/) {}
  // Events have been taken: what else there is to do.
  virtual void Work() {}
  virtual void CheckMemory() = 0;  // P4

  World& world() const { return *world_; }
  TransferNode& transfer() { return *transfer_; }
  TimeNs Now() const { return clock_ + world_->now(); }
  // Runs `what` as this life of the node, once it runs, and what follows from it.
  void Do(const std::function<void()>& what);
  void After(TimeNs delay, std::function<void()> what);
  Connection* FindConnection(PeerId peer) const;
  PeerId FindPeer(const Connection* connection) const;  // 0: gone
  const std::map<PeerId, Connection*>& connections() const { return connections_; }
  SocketTap& tap() { return tap_; }
  void Log(std::string_view what) const { world_->Log(name_, what); }

 private:
  End Side() const { return role_ == NodeRole::kPrefill ? kPrefillEnd : kDecodeEnd; }
  void Settle();
  bool TakeEvents();
  void Drain();
  bool DrainOne(PeerId peer, Connection* connection);
  void CloseOne(PeerId peer, const Status& why, bool tell);
  void SetTimer();

  World* const world_;
  const std::string name_;
  const NodeRole role_;
  const TimeNs clock_;
  std::unique_ptr<TransferNode> transfer_;
  std::uint64_t epoch_ = 0;
  bool stopped_ = false;
  TimeNs stopped_at_ = 0;
  TimeNs stopped_ns_ = 0;
  std::vector<std::function<void()>> put_off_;  // while it was stopped
  std::map<PeerId, Connection*> connections_;
  Connection* closing_ = nullptr;  // the newest that left connections_
  TimeNs timer_ = 0;               // when the next tick is due, if timer_set_
  bool timer_set_ = false;
  SocketTap tap_;
};

std::string Describe(const TransferEvent& event);

}  // namespace lynx
