// A prefill node of the simulation: reads one prompt after the other, makes page streams and pushes them when a real
// node would.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_model.h"
#include "sim/sim_node.h"

namespace lynx {

class SimPrefill final : public SimNode {
 public:
  SimPrefill(World* world, std::string name, TimeNs clock, std::uint32_t max_requests)
      : SimNode(world, std::move(name), NodeRole::kPrefill, clock), max_requests_(max_requests) {}

  // The next request that it begins to read is harmed: kResidualHeldBack, kPageMissing or kPrefillFailed.
  void HarmNext(Seen kind) { harms_.push_back(kind); }
  std::string Held() const override;

 private:
  struct Job {
    RequestId id;
    std::uint64_t prompt = 0;  // PromptHash
    int streams = 1;
    int parts = 1;
    std::vector<PageAddress> pages;
    TransferRequest body;
    int pages_left = 0;
    bool ended = false;
    std::uint64_t offered = 0;
    std::uint64_t pushed = 0;                              // bytes
    std::map<std::pair<int, int>, std::uint64_t> largest;  // page, by part and stream
    TimeNs due = 0;
  };
  using SharedJob = std::shared_ptr<Job>;

  NodeConfig Config() const override;
  void OnKilled() override;
  void OnEvent(TransferEvent event) override;
  void CheckMemory() override;

  void Serve();
  void Begin(const SharedJob& job);
  void PlanPages(const SharedJob& job, TimeNs token_cost, TimeNs total);
  void PushPage(const SharedJob& job, const PageAddress& address);
  bool IsHeldBack(const Job& job, const PageAddress& address, int stream) const;
  int PartOf(const Job& job, const PageAddress& address) const { return address.layer % job.parts; }
  void Fail(const SharedJob& job, const Status& why);

  const std::uint32_t max_requests_;
  std::deque<SharedJob> queue_;
  std::map<RequestId, SharedJob> jobs_;  // open
  bool busy_ = false;
  std::deque<Seen> harms_;
  std::map<RequestId, Seen> harmed_;
  std::shared_ptr<std::uint64_t> live_bytes_ = std::make_shared<std::uint64_t>(0);  // of page streams, of this life
};

}  // namespace lynx
