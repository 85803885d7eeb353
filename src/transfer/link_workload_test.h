// For tests: the workload of staggered requests whose residuals keep the link busy while the next anchor comes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transfer/loopback_test.h"
#include "transfer/simulated_link_test.h"

namespace lynx {

// Offered load is 1.4 times the link, anchors alone are 0.7 of it: the residuals of earlier requests are always queued
// when an anchor arrives, and no anchor meets another.
struct Workload {
  int prefill_nodes = 1;
  int decode_nodes = 1;
  int requests = 8;  // taking turns over the nodes
  TimeNs interval_ns = 200 * kMillisecondNs;
  std::size_t stream_bytes = 16 << 20;  // anchor and residual each
  std::size_t page_bytes = 128 << 10;
  int streams = 2;
  bool anchor_first = true;
  SendOrder order = SendOrder::kStrict;
  bool pull = true;
  std::uint64_t window_bytes = 0;
  LinkOptions link;
};

struct WorkloadResult {
  double anchor_ratio = 0;      // mean over requests of (stream 0 complete - request sent) / ideal
  double max_anchor_ratio = 0;  // the worst of them
  double complete_ratio = 0;    // mean of (all streams complete - request sent) / ideal
  double goodput = 0;           // page-stream bytes / (link rate * time until the last stream)
  int finished = 0;             // requests that ended well, on both sides
  std::uint64_t window_bytes = 0;
};

class WorkloadRun {
 public:
  explicit WorkloadRun(const Workload& workload) : workload_(workload), link_(workload.link) {
    for (int i = 0; i < workload.prefill_nodes; ++i) nodes_.push_back(MakeNode(NodeRole::kPrefill));
    for (int i = 0; i < workload.decode_nodes; ++i) nodes_.push_back(MakeNode(NodeRole::kDecode));
    page_ = RandomBytes(workload.page_bytes, 1);
  }

  WorkloadResult Run() {
    const int pairs = std::max(workload_.prefill_nodes, workload_.decode_nodes);
    for (int i = 0; i < pairs; ++i) {
      TransferNode* prefill = nodes_[std::size_t(i % workload_.prefill_nodes)].get();
      TransferNode* decode = nodes_[std::size_t(workload_.prefill_nodes + i % workload_.decode_nodes)].get();
      const PeerId peer = link_.Connect(prefill, decode).second;
      for (int r = i; r < workload_.requests; r += pairs) {
        link_.At(kFirstNs + r * workload_.interval_ns, [this, decode, peer] {
          TransferRequest request = TestRequest();
          request.anchor_first = workload_.anchor_first;
          const auto id = decode->Request(peer, request, link_.now());
          ASSERT_TRUE(id.ok()) << id.status().ToString();
          started_[{decode, *id}] = link_.now();
        });
      }
    }
    link_.Run(kFirstNs + 60 * kSecondNs, [this] {
      for (auto& node : nodes_) Serve(node.get());
    });
    result_.anchor_ratio /= workload_.requests;
    result_.complete_ratio /= workload_.requests;
    result_.goodput = double(workload_.streams) * double(workload_.requests) * double(workload_.stream_bytes) /
                      (workload_.link.bytes_per_ns * double(last_ns_ - kFirstNs));
    return result_;
  }

 private:
  static constexpr TimeNs kFirstNs = 2 * kSecondNs;

  std::unique_ptr<TransferNode> MakeNode(NodeRole role) {
    NodeConfig config = TestConfig(role);
    config.order = workload_.order;
    config.pull = workload_.pull;
    config.window_bytes = workload_.window_bytes;
    return std::make_unique<TransferNode>(config);
  }

  void Serve(TransferNode* node) {
    while (auto event = node->Poll()) {
      if (const auto* arrived = std::get_if<RequestArrived>(&*event)) Send(node, arrived->request);
      if (const auto* offer = std::get_if<OfferArrived>(&*event)) {
        EXPECT_TRUE(node->AcceptOffer(offer->request, link_.now()).ok());
      }
      if (const auto* completed = std::get_if<StreamCompleted>(&*event)) {
        last_ns_ = link_.now();
        const double ideal_ns = double(workload_.stream_bytes) / workload_.link.bytes_per_ns;
        const double ratio = double(link_.now() - started_[{node, completed->request}]) / ideal_ns;
        if (completed->stream == workload_.streams - 1) result_.complete_ratio += ratio / workload_.streams;
        if (completed->stream != 0) continue;
        result_.anchor_ratio += ratio;
        result_.max_anchor_ratio = std::max(result_.max_anchor_ratio, ratio);
        result_.window_bytes = node->Stats(completed->request.peer).window_bytes;
      }
      if (const auto* finished = std::get_if<RequestFinished>(&*event)) result_.finished += finished->status.ok();
      if (const auto* down = std::get_if<PeerDown>(&*event)) ADD_FAILURE() << down->status.ToString();
    }
  }

  void Send(TransferNode* node, RequestId request) {
    TransferOffer offer;
    offer.stream_count = std::uint32_t(workload_.streams);
    const auto pages = int(workload_.stream_bytes / workload_.page_bytes);
    offer.token_count = std::uint32_t(pages);
    offer.max_bytes.assign(std::size_t(workload_.streams), workload_.stream_bytes);
    EXPECT_TRUE(node->Offer(request, offer, link_.now()).ok());
    EXPECT_TRUE(node->SendPrefillDone(request, {}, link_.now()).ok());
    for (int page = 0; page < pages; ++page) {
      for (int stream = 0; stream < workload_.streams; ++stream) {
        EXPECT_TRUE(node->PushPage(request, 0, stream, {0, KvKind::kKey, 0, 1, page, 1}, page_, link_.now()).ok());
      }
    }
    for (int stream = 0; stream < workload_.streams; ++stream) {
      EXPECT_TRUE(node->EndStream(request, 0, stream, link_.now()).ok());
    }
  }

  Workload workload_;
  SimulatedLink link_;
  std::vector<std::unique_ptr<TransferNode>> nodes_;
  SharedBytes page_;
  std::map<std::pair<TransferNode*, RequestId>, TimeNs> started_;
  TimeNs last_ns_ = 0;
  WorkloadResult result_;
};

inline WorkloadResult RunWorkload(const Workload& workload) { return WorkloadRun(workload).Run(); }

}  // namespace lynx
