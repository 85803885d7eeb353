// The memory of encoded pages: counted from the moment at which they are about to be encoded until the last copy is
// gone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lynx/transfer.h"

namespace lynx {

class HeldBytes {
 public:
  // `freed` is called, on any thread, whenever some are gone. Outlives all that it counts.
  HeldBytes(std::uint64_t max_bytes, std::function<void()> freed) : max_bytes_(max_bytes), freed_(std::move(freed)) {}

  // More may be encoded for this peer. True for a peer for which nothing is held: whatever others hold, its request
  // goes on.
  bool MayGrow(PeerId peer) const {
    const std::lock_guard lock(mutex_);
    return total_ < max_bytes_ || !held_.contains(peer);
  }
  // Counts `bytes` as long as the result lives.
  std::shared_ptr<void> Hold(PeerId peer, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    total_ += bytes;
    held_[peer] += bytes;
    return std::shared_ptr<void>(this, [peer, bytes](HeldBytes* held) { held->Free(peer, bytes); });
  }
  // A copy that counts as long as it lives.
  SharedBytes Keep(PeerId peer, std::span<const std::byte> bytes) {
    auto hold = Hold(peer, bytes.size());
    return SharedBytes(new std::vector<std::byte>(bytes.begin(), bytes.end()),
                       [hold = std::move(hold)](const std::vector<std::byte>* kept) mutable {
                         delete kept;
                         hold.reset();
                       });
  }
  std::uint64_t total() const {
    const std::lock_guard lock(mutex_);
    return total_;
  }

 private:
  void Free(PeerId peer, std::uint64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      total_ -= bytes;
      if ((held_[peer] -= bytes) == 0) held_.erase(peer);
    }
    freed_();
  }

  const std::uint64_t max_bytes_;
  const std::function<void()> freed_;
  mutable std::mutex mutex_;
  std::uint64_t total_ = 0;
  std::map<PeerId, std::uint64_t> held_;
};

}  // namespace lynx
