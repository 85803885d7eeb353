#include "serve/prefill_pool.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/status_macros.h"
#include "serve/retry.h"

namespace lynx {
namespace {

constexpr TimeNs kConnectTimeout = 2 * kSecondNs;
constexpr auto kLookInterval = std::chrono::milliseconds(500);  // at the file
constexpr std::size_t kMaxListBytes = 64 << 10;

// What two nodes tell about a file that was written again within a second, too.
std::int64_t WriteTime(const std::string& path) {
  std::error_code error;
  return std::int64_t(std::filesystem::last_write_time(path, error).time_since_epoch().count());
}

Result<std::vector<std::string>> AddressesIn(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMaxListBytes + 1, '\0');
  file.read(text.data(), std::streamsize(text.size()));
  if (!file.is_open() || file.bad()) return IoError("can't read the list of prefill nodes " + path);
  text.resize(std::size_t(file.gcount()));
  if (text.size() > kMaxListBytes) return LimitExceeded("the list of prefill nodes " + path + " is longer than 64 KiB");
  std::istringstream lines(text);
  std::vector<std::string> addresses;
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    const auto blank = " \t\r";
    const std::size_t first = line.find_first_not_of(blank);
    if (first == std::string::npos) continue;
    addresses.push_back(line.substr(first, line.find_last_not_of(blank) - first + 1));
  }
  return addresses;
}

}  // namespace

Result<std::vector<std::string>> AddressesOf(const PrefillPoolOptions& options) {
  std::vector<std::string> addresses = options.addresses;
  if (!options.file.empty()) {
    LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> more, AddressesIn(options.file));
    addresses.insert(addresses.end(), more.begin(), more.end());
  }
  for (const std::string& address : addresses) LYNX_RETURN_IF_ERROR(ParseAddress(address).status());
  return addresses;
}

Status PrefillPool::Start(NetNode* net) {
  net_ = net;
  LYNX_RETURN_IF_ERROR(ReadList());
  thread_ = std::thread([this] { Loop(); });
  return Ok();
}

void PrefillPool::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Nodes that left the list keep their connections until their requests are over; nothing new is sent to them.
Status PrefillPool::ReadList() {
  if (!options_.file.empty()) file_time_ = WriteTime(options_.file);
  LYNX_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AddressesOf(options_));
  const std::lock_guard lock(mutex_);
  for (Node& node : nodes_) node.listed = false;
  for (const std::string& address : addresses) {
    const auto found = std::ranges::find(nodes_, address, &Node::address);
    if (found != nodes_.end()) {
      found->listed = true;
    } else {
      nodes_.push_back({.address = address});
    }
  }
  std::erase_if(nodes_, [](const Node& node) { return !node.listed && node.peer == 0; });
  return Ok();
}

// One at a time, and first the one that failed least: a machine that is gone takes the whole timeout every time, and
// neither the nodes that come back nor the file nor the end should wait for all of those.
void PrefillPool::Loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const TimeNs now = MonotonicNow();
    TimeNs next = now + kSecondNs;
    const Node* due = nullptr;
    for (const Node& node : nodes_) {
      if (!node.listed || node.peer != 0) continue;
      if (node.next_try > now) {
        next = std::min(next, node.next_try);
      } else if (due == nullptr || node.failures < due->failures) {
        due = &node;
      }
    }
    const std::string address = due == nullptr ? "" : due->address;
    lock.unlock();
    if (!address.empty()) TryOne(address);
    if (!options_.file.empty() && WriteTime(options_.file) != file_time_) {
      if (const Status status = ReadList(); !status.ok()) Log(status.message() + "; the old list stays");
    }
    lock.lock();
    if (address.empty()) {
      changed_.wait_for(lock, std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(next - now), kLookInterval),
                        [this] { return stopping_; });
    }
  }
}

void PrefillPool::TryOne(const std::string& address) {
  const Result<PeerId> peer = net_->Connect(address, kConnectTimeout);
  const std::lock_guard lock(mutex_);
  const auto node = std::ranges::find(nodes_, address, &Node::address);
  if (!peer.ok()) return Apply(&*node, peer.status());
  node->peer = *peer;
  if (const auto heard = early_.extract(*peer)) Apply(&*node, heard.mapped());
}

void PrefillPool::OnPeer(PeerId peer, const Status& status) {
  const std::lock_guard lock(mutex_);
  const auto node = std::ranges::find(nodes_, peer, &Node::peer);
  if (node != nodes_.end()) {
    Apply(&*node, status);
  } else {
    early_[peer] = status;
  }
}

void PrefillPool::Apply(Node* node, const Status& status) {
  const bool was_up = node->up;
  node->tried = true;
  node->up = status.ok();
  if (status.ok()) {
    node->failures = 0;
    Log("prefill node " + node->address + " is up");
  } else {
    const std::string& what = status.message();
    const std::string before = node->status.message();
    node->status =
        what.find(node->address) != std::string::npos ? status : Status(status.code(), node->address + ": " + what);
    node->peer = 0;
    node->running = 0;
    node->next_try = MonotonicNow() + ReconnectPause(node->failures, &random_);
    if (was_up || node->status.message() != before) Log("prefill node " + node->status.message());
    ++node->failures;
  }
  changed_.notify_all();
}

Status PrefillPool::Await(TimeNs timeout) {
  std::unique_lock lock(mutex_);
  const auto any_up = [this] { return std::ranges::any_of(nodes_, &Node::up); };
  changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [&] {
    return any_up() || std::ranges::all_of(nodes_, [](const Node& node) { return node.tried; });
  });
  if (any_up()) return Ok();
  if (nodes_.empty()) return Invalid("there is no prefill node to ask");
  if (!nodes_.front().tried) return IoError(nodes_.front().address + " does not answer as a Lynx node");
  return nodes_.front().status;
}

Result<PeerId> PrefillPool::Take(PeerId avoid) {
  std::map<PeerId, int> loads;
  {
    const std::lock_guard lock(mutex_);
    for (const Node& node : nodes_) {
      if (node.up && node.listed) loads[node.peer] = node.running;
    }
  }
  if (loads.empty()) {
    const Status status = Await(0);
    return IoError(status.ok() ? "no prefill node is up" : status.message());
  }
  net_->Call([&loads](TransferNode& node, TimeNs) {
    for (auto& [peer, load] : loads) load = std::max(load, int(node.Stats(peer).peer_load));
  });
  if (loads.size() > 1) loads.erase(avoid);
  const auto least = std::ranges::min_element(loads, {}, [](const auto& entry) { return entry.second; });
  const std::lock_guard lock(mutex_);
  const auto node = std::ranges::find(nodes_, least->first, &Node::peer);
  if (node != nodes_.end()) ++node->running;
  return least->first;
}

void PrefillPool::Give(PeerId peer) {
  const std::lock_guard lock(mutex_);
  const auto node = std::ranges::find(nodes_, peer, &Node::peer);
  if (node != nodes_.end() && node->running > 0) --node->running;
}

std::vector<PrefillNodeState> PrefillPool::States() const {
  const std::lock_guard lock(mutex_);
  std::vector<PrefillNodeState> states;
  for (const Node& node : nodes_) {
    if (node.listed) states.push_back({node.address, node.up, node.up ? Ok() : node.status, node.running});
  }
  return states;
}

}  // namespace lynx
