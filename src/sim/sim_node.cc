#include "sim/sim_node.h"

#include <algorithm>
#include <utility>

namespace lynx {

void SimNode::Start() {
  epoch_ = world_->random().Next();
  NodeConfig config = Config();
  config.name = name_;
  config.role = role_;
  config.epoch = epoch_;
  config.layout = {{"model", "sim"}};
  config.codecs = {"sim1", "sim2", "sim3"};
  config.hold_bytes = 1;  // pages are of a few bytes
  transfer_ = std::make_unique<TransferNode>(config);
  stopped_ = timer_set_ = false;
  Log("starts");
  OnStart();
  Do([] {});
}

void SimNode::Kill(bool silent) {
  if (!alive()) return;
  Log(silent ? "FAULT host lost" : "FAULT killed");
  for (const auto& [peer, connection] : connections_) {
    connection->broken = true;
    tap_.OnPeerGone(peer);
    if (silent) {
      connection->Vanish(Side());
    } else {
      connection->Close(Side(), world_->Chance(0.5));
    }
  }
  connections_.clear();
  OnKilled();
  transfer_.reset();
  put_off_.clear();
  stopped_ = false;
}

void SimNode::Stop() {
  if (!running()) return;
  Log("FAULT stopped");
  stopped_ = true;
  stopped_at_ = world_->now();
  for (const auto& [peer, connection] : connections_) connection->broken = true;
}

void SimNode::Resume() {
  if (!alive() || !stopped_) return;
  Log("goes on");
  stopped_ns_ += world_->now() - stopped_at_;
  stopped_ = false;
  for (const auto& what : std::exchange(put_off_, {})) what();
  // Reading may end connections and open others.
  const auto connections = connections_;
  for (const auto& [peer, connection] : connections) connection->Read(Side());
  Do([] {});
}

void SimNode::Do(const std::function<void()>& what) {
  if (!alive()) return;
  if (stopped_) return put_off_.push_back(what);
  what();
  Settle();
}

void SimNode::After(TimeNs delay, std::function<void()> what) {
  world_->After(delay, [this, life = epoch_, what = std::move(what)] {
    if (life == epoch_) Do(what);
  });
}

Connection* SimNode::FindConnection(PeerId peer) const {
  const auto found = connections_.find(peer);
  return found == connections_.end() ? nullptr : found->second;
}

PeerId SimNode::FindPeer(const Connection* connection) const {
  const auto found = std::ranges::find(connections_, connection, [](const auto& entry) { return entry.second; });
  return found == connections_.end() ? 0 : found->first;
}

void SimNode::Attach(Connection* connection) {
  const PeerId peer = transfer_->AddPeer(Now());
  connections_[peer] = connection;
  tap_.OnPeer(peer);
  Do([] {});
}

void SimNode::OnBytes(Connection* connection, std::span<const std::byte> bytes) {
  const PeerId peer = FindPeer(connection);
  if (peer == 0) return;
  if (role_ == NodeRole::kPrefill) tap_.OnReceived(peer, bytes, Now());
  transfer_->Feed(peer, bytes, Now());
  Settle();
}

void SimNode::OnEnd(Connection* connection) {
  const PeerId peer = FindPeer(connection);
  if (peer == 0) return;
  CloseOne(peer, IoError("connection was closed by the peer"), true);
  Settle();
}

void SimNode::OnRoom(Connection* connection) {
  if (running() && FindPeer(connection) != 0) Settle();
}

void SimNode::CloseOne(PeerId peer, const Status& why, bool tell) {
  Connection* connection = closing_ = connections_.at(peer);
  connections_.erase(peer);
  if (!connection->broken) world_->Violate("P6", name_ + " ends a connection that nothing has happened to");
  if (tell) connection->Close(Side());
  transfer_->RemovePeer(peer, why, Now());
  TakeEvents();
  tap_.OnPeerGone(peer);
  OnPeerGone(connection);
}

bool SimNode::TakeEvents() {
  bool any = false;
  while (auto event = transfer_->Poll()) {
    any = true;
    if (world_->logs()) Log(Describe(*event));
    if (const auto* down = std::get_if<PeerDown>(&*event);
        down && down->status.message().find("heartbeats") != std::string::npos) {
      world_->Note(Seen::kPeerDead);
    }
    if (const auto* up = std::get_if<PeerUp>(&*event)) {
      if (Connection* connection = FindConnection(up->peer)) connection->up[std::size_t(Side())] = true;
    }
    const auto* finished = std::get_if<RequestFinished>(&*event);
    if (finished) {
      Connection* connection = FindConnection(finished->request.peer);
      if (connection == nullptr) connection = closing_;
      connection->NoteTransferEnd(Side(), finished->request.id, finished->status.code());
    }
    const RequestId id = finished ? finished->request : RequestId{};
    OnEvent(std::move(*event));
    if (finished) tap_.OnRequestGone(id);
  }
  return any;
}

// What the network layer does after every wake-up, until nothing moves.
void SimNode::Settle() {
  do {
    TakeEvents();
    Work();
    Drain();
  } while (TakeEvents());
  CheckMemory();
  SetTimer();
}

void SimNode::Drain() {
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<PeerId> peers;
    for (const auto& [peer, connection] : connections_) peers.push_back(peer);
    if (!peers.empty())
      std::ranges::rotate(peers, peers.begin() + std::ptrdiff_t(world_->random().Below(peers.size())));
    for (const PeerId peer : peers) {
      Connection* connection = connections_.at(peer);
      moved |= DrainOne(peer, connection);
      if (transfer_->WantsClose(peer)) {
        // Something was wrong with what this peer has sent, or it is dead.
        CloseOne(peer, IoError("connection closed"), true);
      }
    }
  }
}

bool SimNode::DrainOne(PeerId peer, Connection* connection) {
  const std::size_t room = connection->Room(Side());
  if (room == 0) return false;
  transfer_->SetWritable(peer, true);
  tap_.OnWritable(peer, true, Now());
  std::vector<std::byte> frames;
  transfer_->Output(peer, room, Now(), &frames);
  if (frames.empty()) return false;
  if (role_ == NodeRole::kPrefill && !tap_.OnSent(peer, frames, Now())) {
    world_->Violate("P5", name_ + " sends a higher stream while a lower one is granted and unsent");
  }
  connection->Write(Side(), std::move(frames));
  const bool writable = connection->Room(Side()) > 0;
  transfer_->SetWritable(peer, writable);
  tap_.OnWritable(peer, writable, Now());
  return true;
}

void SimNode::SetTimer() {
  const auto next = transfer_->NextTimeout();
  if (!next || (timer_set_ && timer_ <= *next)) return;
  timer_ = *next;
  timer_set_ = true;
  After(std::max<TimeNs>(0, *next - Now()), [this, at = timer_] {
    if (timer_set_ && timer_ == at) timer_set_ = false;
    transfer_->Tick(Now());
  });
}

std::string SimNode::Held() const {
  std::string held;
  if (transfer_->OpenRequests() > 0) held += std::to_string(transfer_->OpenRequests()) + " requests open; ";
  for (const auto& [peer, connection] : connections_) {
    if (!connection->open(OtherEnd(Side()))) held += "peer " + std::to_string(peer) + " is gone and kept; ";
  }
  return held;
}

std::string Describe(const TransferEvent& event) {
  struct Visitor {
    std::string Of(RequestId id) const { return std::to_string(id.peer) + "/" + std::to_string(id.id); }
    std::string operator()(const PeerUp& e) const { return "peer " + std::to_string(e.peer) + " is up: " + e.name; }
    std::string operator()(const PeerDown& e) const {
      return "peer " + std::to_string(e.peer) + " is down: " + e.status.ToString();
    }
    std::string operator()(const RequestArrived& e) const {
      return "REQUEST " + Of(e.request) + " of " + std::to_string(e.body.tokens.size()) + " tokens, " + e.body.codec;
    }
    std::string operator()(const OfferArrived& e) const { return "OFFER " + Of(e.request); }
    std::string operator()(const PrefillDoneArrived& e) const {
      return "PREFILL_DONE " + Of(e.request) + ", token 0 is " + std::to_string(e.done.token0);
    }
    std::string operator()(const PageArrived& e) const {
      return "page " + Of(e.request) + " stream " + std::to_string(e.stream) + ", layer " +
             std::to_string(e.address.layer) + (e.address.kind == KvKind::kKey ? " K" : " V") + ", tokens " +
             std::to_string(e.address.first_token) + "+" + std::to_string(e.address.token_count) + ", " +
             std::to_string(e.bytes->size()) + " bytes";
    }
    std::string operator()(const StreamCompleted& e) const {
      return "stream " + std::to_string(e.stream) + " of " + Of(e.request) + " is complete";
    }
    std::string operator()(const RequestFinished& e) const {
      return "transfer " + Of(e.request) + " ends: " + e.status.ToString();
    }
  };
  return std::visit(Visitor{}, event);
}

}  // namespace lynx
