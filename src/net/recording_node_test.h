// A node on real sockets that notes what happens, for the tests of NetNode.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/net_node.h"

namespace lynx {

inline NetOptions Options(NodeRole role) {
  NetOptions options;
  options.node.name = role == NodeRole::kPrefill ? "prefill" : "decode";
  options.node.role = role;
  options.node.epoch = role == NodeRole::kPrefill ? 11 : 22;
  options.node.layout = {{"model", "toy"}};
  options.node.codecs = {"raw"};
  if (role == NodeRole::kPrefill) options.listen = "127.0.0.1:0";
  return options;
}

inline SharedBytes Bytes(std::size_t size) { return std::make_shared<std::vector<std::byte>>(size, std::byte{5}); }

inline PageAddress PageAt(int page) { return {page, KvKind::kKey, 0, 1, 0, 8}; }

inline TransferRequest Request() {
  TransferRequest request;
  request.tokens = {1, 2, 3};
  request.codec = "raw";
  return request;
}

// A node that notes what happens; a prefill node answers requests with `pages` pages of `page_bytes`.
class Node {
 public:
  explicit Node(const NetOptions& options, int pages = 4, std::size_t page_bytes = 50'000)
      : pages_(pages), page_bytes_(page_bytes) {
    net = NetNode::Start(options, [this](TransferNode& node, TransferEvent event, TimeNs now) {
            OnEvent(node, event, now);
          }).value();
  }
  Result<PeerId> Connect(const Node& to) { return net->Connect(to.net->listen_address(), kSecondNs); }
  void SendRequest(PeerId peer) {
    net->Call([peer](TransferNode& node, TimeNs now) { EXPECT_TRUE(node.Request(peer, Request(), now).ok()); });
  }
  // False when it has not come true after `seconds`.
  bool Wait(const std::function<bool()>& until, int seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(seconds), until);
  }

  int up = 0, down = 0, finished = 0;  // under Wait only
  std::uint64_t bytes = 0;
  Status last_down, last_finish;

 private:
  void OnEvent(TransferNode& node, const TransferEvent& event, TimeNs now) {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<PeerUp>(event)) ++up;
    if (const auto* peer = std::get_if<PeerDown>(&event)) ++down, last_down = peer->status;
    if (const auto* request = std::get_if<RequestArrived>(&event)) Answer(node, request->request, now);
    if (const auto* offer = std::get_if<OfferArrived>(&event)) (void)node.AcceptOffer(offer->request, now);
    if (const auto* page = std::get_if<PageArrived>(&event)) bytes += page->bytes->size();
    if (const auto* request = std::get_if<RequestFinished>(&event)) ++finished, last_finish = request->status;
    changed_.notify_all();
  }
  void Answer(TransferNode& node, RequestId request, TimeNs now) {
    TransferOffer offer;
    offer.token_count = 8;
    offer.max_bytes = {std::uint64_t(pages_) * page_bytes_};
    EXPECT_TRUE(node.Offer(request, offer, now).ok());
    EXPECT_TRUE(node.SendPrefillDone(request, {.token0 = 7}, now).ok());
    for (int page = 0; page < pages_; ++page) {
      EXPECT_TRUE(node.PushPage(request, 0, 0, PageAt(page), Bytes(page_bytes_), now).ok());
    }
    EXPECT_TRUE(node.EndStream(request, 0, 0, now).ok());
  }

  const int pages_;
  const std::size_t page_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;

 public:
  std::unique_ptr<NetNode> net;  // last: its thread uses the rest
};

// The status that ends the connection; ok when it has not ended after 5 s of silence.
inline Status ReadToTheEnd(const Fd& socket) {
  std::vector<std::byte> buffer(1 << 16);
  Status status;
  while (status.ok() && WaitReadable(socket, 5 * kSecondNs)) status = ReadSome(socket, buffer).status();
  return status;
}

inline std::size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::size_t(std::distance(begin(all), end(all)));
}

}  // namespace lynx
