#include "sim/simulation.h"

#include <algorithm>
#include <array>
#include <memory>

#include "sim/sim_decode.h"
#include "sim/sim_prefill.h"

namespace lynx {
namespace {

constexpr TimeNs kLongestDeadline = 6 * kSecondNs;
constexpr TimeNs kLastSubmission = 1500 * kMillisecondNs;
constexpr TimeNs kLongestStop = 4 * kSecondNs;
// After this every request and every transfer has reached its deadline, and dead peers have been found.
constexpr TimeNs kEnd = kLastSubmission + kLongestDeadline + kLongestStop + 4 * kSecondNs;
// Far more than any run needs: one that does not come to rest is reported instead of running on.
constexpr std::uint64_t kMostEvents = 2'000'000;

constexpr std::array kConnectionFaults = {
    Seen::kCut,        Seen::kBlackholeOneWay, Seen::kBlackholeBothWays, Seen::kStall,
    Seen::kSlowReader, Seen::kTrickle,         Seen::kBitFlip,           Seen::kHeaderFlip,
    Seen::kWordSwap,   Seen::kFrameDropped,    Seen::kFrameDoubled,
};
constexpr std::array kNodeFaults = {Seen::kNodeStopped, Seen::kNodeStoppedForEver, Seen::kNodeKilled, Seen::kHostLost};
constexpr std::array kPrefillFaults = {Seen::kResidualHeldBack, Seen::kPageMissing, Seen::kPrefillFailed};

class Simulation {
 public:
  Simulation(std::uint64_t seed, const std::function<void(std::string_view line)>& log) : world_(seed, log) {
    MakeNodes();
    MakeRequests();
    PlanFaults();
  }

  SimReport Run() {
    for (const auto& prefill : prefills_) prefill->Start();
    for (const auto& decode : decodes_) decode->Start();
    while (world_.Step(kEnd)) {
      if (world_.events() < kMostEvents) continue;
      world_.Violate("P3", "the run does not come to rest");
      break;
    }
    CheckEnd();
    return {world_.violations(), world_.counts(), world_.events()};
  }

 private:
  void MakeNodes();
  void MakeRequests();
  void MakeRequest(int number);
  void PlanFaults();
  Connection* Dial(SimDecode* from, int prefill);
  LinkPlan MakeLink();

  void HarmSomeConnection(Seen kind);
  void HarmConnection(Seen kind, Connection* connection);
  void HarmSomeNode(Seen kind);
  void Kill(SimNode* node, bool silent);
  void StartAgain(SimNode* node);
  void ExpectEnd(Connection* connection, End at);
  void ExpectEnds(SimNode* node);
  void CheckEnd();

  template <typename T>
  T& Any(std::vector<std::unique_ptr<T>>& all) {
    return *all[world_.Below(all.size())];
  }
  // No clock begins at zero, and none may matter: near the ends of its range, too.
  TimeNs AnyClock() {
    constexpr TimeNs kFar = TimeNs{1} << 62;
    return world_.Chance(0.2) ? world_.Between(-kSecondNs, kSecondNs) : world_.Between(-kFar, kFar);
  }

  World world_;
  std::vector<std::unique_ptr<SimPrefill>> prefills_;
  std::vector<std::unique_ptr<SimDecode>> decodes_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<SimRequest>> requests_;
  std::map<const SimNode*, std::vector<std::byte>> remembered_;  // frames of a prefill node's former lives
};

// --- the system ---

void Simulation::MakeNodes() {
  const int prefills = int(world_.Between(1, 3)), decodes = int(world_.Between(1, 3));
  for (int i = 0; i < prefills; ++i) {
    const auto max_requests = std::uint32_t(world_.Between(1, 6));
    prefills_.push_back(std::make_unique<SimPrefill>(&world_, "prefill" + std::to_string(i), AnyClock(), max_requests));
  }
  for (int i = 0; i < decodes; ++i) {
    SimDecodePlan plan;
    plan.window_bytes = world_.Chance(0.3) ? 0 : std::uint64_t(world_.Magnitude(100, 64 << 10));
    constexpr std::uint64_t kFastWindow = 32 << 10;  // all bytes of a run in a second, over the longest round trip
    if (plan.window_bytes != 0 && plan.window_bytes < kFastWindow) world_.NoteSlowness();
    plan.max_running = int(world_.Between(1, 6));
    plan.max_waiting = int(world_.Between(1, 4));
    plan.retries = int(world_.Between(0, 3));
    plan.step_ns = world_.Magnitude(20'000, 2 * kMillisecondNs);
    plan.page_ns = world_.Magnitude(1'000, 5 * kMillisecondNs);
    const auto dial = [this](SimDecode* from, int prefill) { return Dial(from, prefill); };
    decodes_.push_back(
        std::make_unique<SimDecode>(&world_, "decode" + std::to_string(i), AnyClock(), plan, prefills, dial));
  }
}

// Fast enough for all that a run moves within a second.
LinkPlan Simulation::MakeLink() {
  LinkPlan plan;
  plan.bytes_per_ns = double(world_.Magnitude(500, 50'000)) * 1e-6;
  plan.delay_ns = world_.Magnitude(10'000, 20 * kMillisecondNs);
  plan.socket_bytes = std::size_t(world_.Magnitude(1 << 10, 128 << 10));
  plan.window_bytes = std::size_t(world_.Magnitude(32 << 10, 256 << 10));
  plan.segment_bytes = std::size_t(world_.Magnitude(512, 64 << 10));
  return plan;
}

Connection* Simulation::Dial(SimDecode* from, int prefill) {
  SimPrefill* to = prefills_[std::size_t(prefill)].get();
  if (!to->alive()) return nullptr;
  connections_.push_back(std::make_unique<Connection>(&world_, to, from, MakeLink()));
  Connection* connection = connections_.back().get();
  connection->source = to->epoch();
  connection->broken = !to->running();
  if (const auto old = remembered_.find(to); old != remembered_.end() && world_.Chance(0.9)) {
    for (int i = 0; i < 3; ++i) {
      connection->Harm(kDecodeEnd, {Seen::kFrameReplayed, int(world_.Below(10)), world_.Chance(0.7), old->second});
    }
  }
  from->Attach(connection);
  to->Attach(connection);
  return connection;
}

void Simulation::MakeRequests() {
  const int count = int(world_.Between(1, 12));
  for (int number = 0; number < count; ++number) MakeRequest(number);
}

void Simulation::MakeRequest(int number) {
  auto request = std::make_unique<SimRequest>();
  request->number = number;
  request->prompt.resize(std::size_t(world_.Magnitude(1, 40)));
  for (Token& token : request->prompt) token = Token(world_.Below(kSimVocab));
  if (number > 0 && world_.Chance(0.1)) request->prompt = requests_.front()->prompt;
  request->streams = int(world_.Between(1, kSimStreams));
  request->overlap = world_.Chance(0.7);
  request->anchor_first = world_.Chance(0.6);
  request->disagreement = world_.Chance(0.2) ? 1 : int(world_.Between(4, 40));  // 1: no draft ever stands (C8)
  request->random_windows = world_.Chance(0.5);
  SpeculatorConfig& config = request->speculation;
  config.prompt_tokens = int(request->prompt.size());
  config.max_drafts = int(world_.Chance(0.3) ? world_.Below(2) : world_.Magnitude(2, 64));  // C5: cap 0, cap 1
  config.verify_batch = int(world_.Between(1, 16));
  config.max_new_tokens = int(world_.Magnitude(1, 60));
  config.context_tokens = config.prompt_tokens + int(world_.Chance(0.2) ? world_.Below(8) : 100);
  config.recheck_middle = world_.Chance(0.7);
  request->deadline_ms = std::uint32_t(world_.Between(3000, kLongestDeadline / kMillisecondNs));
  if (world_.Chance(0.06)) {
    request->deadline_ms = std::uint32_t(world_.Magnitude(1, 500));
    world_.Note(Seen::kShortDeadline);
  }
  SimRequest* submitted = request.get();
  SimDecode* node = &Any(decodes_);
  requests_.push_back(std::move(request));
  // Some come in one burst: more than fit.
  const TimeNs at = world_.Chance(0.5) ? 200 * kMillisecondNs : world_.Between(0, kLastSubmission);
  submitted->submission = at;
  world_.After(at, [node, submitted] { node->Submit(submitted); });
  if (world_.Chance(0.08)) {
    world_.After(at + world_.Magnitude(1'000, kSecondNs), [node, submitted] { node->Leave(submitted); });
  }
}

// --- faults ---

void Simulation::PlanFaults() {
  const int count = int(world_.Below(6));
  if (count == 0) world_.Note(Seen::kNothingWrong);
  for (int i = 0; i < count; ++i) {
    // Most while something is under way.
    const TimeNs busy =
        requests_[world_.Below(requests_.size())]->submission + world_.Magnitude(10'000, 300 * kMillisecondNs);
    const TimeNs at = world_.Chance(0.8) ? busy : world_.Between(0, kLastSubmission);
    const std::uint64_t kind = world_.Below(kConnectionFaults.size() + kNodeFaults.size() + kPrefillFaults.size());
    world_.After(at, [this, kind] {
      if (kind < kConnectionFaults.size()) return HarmSomeConnection(kConnectionFaults[kind]);
      const std::size_t rest = kind - kConnectionFaults.size();
      if (rest < kNodeFaults.size()) return HarmSomeNode(kNodeFaults[rest]);
      Any(prefills_).HarmNext(kPrefillFaults[rest - kNodeFaults.size()]);
    });
  }
}

void Simulation::HarmSomeConnection(Seen kind) {
  Connection* connection = Any(decodes_).ConnectionTo(int(world_.Below(prefills_.size())));
  if (connection != nullptr) HarmConnection(kind, connection);
}

void Simulation::HarmConnection(Seen kind, Connection* connection) {
  const End to = world_.Chance(0.75) ? kDecodeEnd : kPrefillEnd;
  const auto happens = [&] {
    world_.Note(kind);
    if (world_.logs()) {
      world_.Log(connection->node(to)->name(), std::string("FAULT ").append(SeenName(kind)) + ", connection with " +
                                                   connection->node(OtherEnd(to))->name());
    }
  };
  switch (kind) {
    case Seen::kCut:
      return connection->CutAfter(to, std::size_t(world_.Magnitude(1, 64 << 10)));
    case Seen::kBlackholeBothWays:
      connection->Blackhole(OtherEnd(to));
      ExpectEnd(connection, OtherEnd(to));
      [[fallthrough]];
    case Seen::kBlackholeOneWay:
      connection->Blackhole(to);
      connection->broken = true;
      ExpectEnd(connection, to);
      return happens();
    case Seen::kStall:  // short of three heartbeats
      connection->Stall(to, world_.Between(kMillisecondNs, 800 * kMillisecondNs));
      return happens();
    case Seen::kSlowReader:
      connection->SlowReader(to, double(world_.Magnitude(10, 1000)) * 1e-6, world_.Between(0, 3 * kSecondNs));
      return happens();
    case Seen::kTrickle:
      connection->Trickle(to, int(world_.Magnitude(10, 1000)));
      return happens();
    default:
      return connection->Harm(to, {kind, int(world_.Below(20)), world_.Chance(0.6) && to == kDecodeEnd, {}});
  }
}

void Simulation::HarmSomeNode(Seen kind) {
  SimNode* node = world_.Chance(0.7) ? static_cast<SimNode*>(&Any(prefills_)) : &Any(decodes_);
  if (!node->running()) return;
  world_.Note(kind);
  switch (kind) {
    case Seen::kNodeStopped:
      node->Stop();
      return world_.After(world_.Magnitude(kMillisecondNs, kLongestStop), [node] { node->Resume(); });
    case Seen::kNodeStoppedForEver:
      node->Stop();
      return ExpectEnds(node);
    case Seen::kHostLost:
      ExpectEnds(node);
      break;
    default:
      break;
  }
  Kill(node, kind == Seen::kHostLost);
  // Sometimes a power cut: request ids begin anew, too.
  if (SimDecode& other = Any(decodes_); world_.Chance(0.4) && other.running()) Kill(&other, kind == Seen::kHostLost);
}

void Simulation::Kill(SimNode* node, bool silent) {
  // What it said in this life may come back in the next (B7).
  std::vector<std::byte> said;
  for (const auto& connection : connections_) {
    if (connection->node(kPrefillEnd) != node || connection->source != node->epoch()) continue;
    said.insert(said.end(), connection->passed(kDecodeEnd).begin(), connection->passed(kDecodeEnd).end());
  }
  if (!said.empty()) remembered_[node] = std::move(said);
  node->Kill(silent);
  if (world_.Chance(0.7))
    world_.After(world_.Magnitude(kMillisecondNs, 500 * kMillisecondNs), [this, node] { StartAgain(node); });
}

// P3: a peer from which nothing comes any more is found within 2 s.
void Simulation::ExpectEnd(Connection* connection, End at) {
  SimNode* node = connection->node(at);
  if (!connection->open(at) || !connection->up[std::size_t(at)] || connection->slowed) return;
  world_.After(2 * kSecondNs, [this, connection, at, node, life = node->epoch(), stopped = node->stopped_ns()] {
    const bool ran = node->running() && node->epoch() == life && node->stopped_ns() == stopped;
    if (ran && connection->open(at)) world_.Violate("P3", node->name() + " has not found a dead peer within 2 s");
  });
}

void Simulation::ExpectEnds(SimNode* node) {
  for (const auto& connection : connections_) {
    for (const End end : {kPrefillEnd, kDecodeEnd}) {
      if (connection->node(end) == node && connection->open(end)) ExpectEnd(connection.get(), OtherEnd(end));
    }
  }
}

void Simulation::StartAgain(SimNode* node) {
  if (node->alive()) return;
  world_.Note(Seen::kNodeRestarted);
  node->Start();
}

// --- the end ---

void Simulation::CheckEnd() {
  for (const auto& request : requests_) {
    if (request->ended) continue;
    const bool stopped =
        std::ranges::any_of(decodes_, [&](const auto& node) { return node->alive() && !node->running(); });
    if (!stopped) world_.Violate("P3", request->Name() + " has not ended");
  }
  const auto check = [this](const SimNode& node) {
    if (!node.running()) return;
    if (const std::string held = node.Held(); !held.empty()) world_.Violate("P7", node.name() + " still holds " + held);
  };
  for (const auto& connection : connections_) connection->CheckTransferEnds();
  for (const auto& node : prefills_) check(*node);
  for (const auto& node : decodes_) check(*node);
}

}  // namespace

SimReport Simulate(std::uint64_t seed, const std::function<void(std::string_view line)>& log) {
  return Simulation(seed, log).Run();
}

}  // namespace lynx
