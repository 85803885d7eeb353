// A decode node of the simulation: serve's sans-IO parts (DecodeSession, Retry) between a TransferNode, codec threads
// and an engine that take virtual time. It does what EngineLoop, Lane, Generation and PrefillPool do on real threads.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serve/decode_session.h"
#include "serve/retry.h"
#include "sim/sim_model.h"
#include "sim/sim_node.h"
#include "sim/sim_request.h"

namespace lynx {

struct SimDecodePlan {
  std::uint64_t window_bytes = 0;  // NodeConfig's
  int max_running = 2;
  int max_waiting = 4;
  int retries = 2;
  TimeNs step_ns = kMillisecondNs;  // of the engine, and as much for every eight tokens
  TimeNs page_ns = 100'000;         // to decode a page; threads run side by side
};

class SimDecode final : public SimNode {
 public:
  // Dials a prefill node: the connection, attached at both ends, or null.
  using Dial = std::function<Connection*(SimDecode* from, int prefill)>;

  SimDecode(World* world, std::string name, TimeNs clock, const SimDecodePlan& plan, int prefills, Dial dial)
      : SimNode(world, std::move(name), NodeRole::kDecode, clock),
        plan_(plan),
        prefills_(prefills),
        dial_(std::move(dial)) {}

  // The request, which lives as long as the node, ends at some time.
  void Submit(SimRequest* request);
  void Leave(SimRequest* request);
  std::string Held() const override;
  Connection* ConnectionTo(int prefill) const;

 private:
  // One transfer of a request, as Generation is.
  struct Try {
    SimRequest* const request;
    const Connection* connection = nullptr;
    std::optional<Token> token0;  // shown before
    DecodeSession session;
    StagedPages staging;
    bool importing = false;  // the engine reads the staging block
    std::uint64_t offered = 0;
    std::optional<RequestId> id;
    TimeNs due = 0;  // on this node's clock
    Status failure;
    std::shared_ptr<int> live;
    Try(SimRequest* request, std::shared_ptr<int> live_tries);
    ~Try() { --*live; }
  };
  using SharedTry = std::shared_ptr<Try>;

  struct Lane {
    SimRequest* request = nullptr;
    Retry retry;
    SharedTry now = {};
    PeerId last_peer = 0;
    SpeculatorAction action = Wait{};
    bool stop_sent = false;
    std::vector<CellState> cells = {};  // of the prompt, then of every token that was fed
    int refined = -1;
    StagedPages importing = {};
  };

  struct Link {
    bool up = false;
    bool dialling = false;
    Connection* connection = nullptr;
    int failures = 0;
    int running = 0;
  };

  // --- network ---
  NodeConfig Config() const override;
  void OnStart() override;
  void OnKilled() override;
  void OnEvent(TransferEvent event) override;
  void OnPeerGone(Connection* connection) override;
  void CheckMemory() override;
  void DialSoon(int prefill, TimeNs pause);
  void OnLinkDown(Link* link);
  Status Take(Try* now, TransferEvent& event);
  Status TakeOffer(Try* now, const OfferArrived& offer);
  Status TakePage(Try* now, PageArrived& page);
  void NoteCompleted(const Try& now, int stream);
  void CheckFinished(RequestId id, const Status& status);
  void PostJobs(const SharedTry& now);
  void DecodePage(const SharedTry& now, const PageJob& job);

  // --- engine ---
  void Work() override;
  bool Turn();
  void Admit();
  void RunSteps();
  Status Begin(Lane* lane);
  Status Advance(Lane* lane, bool* may_import);
  Status Act(Lane* lane, bool* may_import, bool* rests);
  Status OnStep(Lane* lane);
  Status FinishImport(Lane* lane);
  Status Judge(Lane* lane, const Check& check);
  Token FeedToken(Lane* lane, Token token);
  void TakeCommit(Lane* lane, const Commit& commit);
  bool TryAgain(Lane* lane, const Status& why);
  void Release(Lane* lane);
  void EndLane(Lane* lane, const Status& status);
  void End(SimRequest* request, const Status& status);
  Result<int> ChooseLink(PeerId avoid) const;
  static bool Steps(const Lane& lane);

  const SimDecodePlan plan_;
  const int prefills_;
  const Dial dial_;
  std::vector<Link> links_;
  std::map<RequestId, SharedTry> tries_;
  std::set<RequestId> open_;  // transfers that have not ended
  struct Waiting {
    SimRequest* request;
    Retry retry;
  };
  std::deque<Waiting> waiting_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool engine_busy_ = false;
  bool wake_set_ = false;
  std::shared_ptr<int> live_tries_ = std::make_shared<int>(0);
  std::vector<std::weak_ptr<const std::vector<std::byte>>> pages_;  // all that ever arrived
};

}  // namespace lynx
