// The decode node's engine: requests share its steps, one import at a time, all in virtual time.
#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "sim/sim_decode.h"

namespace lynx {
namespace {

constexpr TimeNs kWaitSlice = 20 * kMillisecondNs;

int FedBy(const SpeculatorAction& action) {
  const Check* check = std::get_if<Check>(&action);
  return check != nullptr ? int(check->feed.size()) : 1;
}

}  // namespace

// --- requests ---

void SimDecode::Submit(SimRequest* request) {
  request->submitted = world().now();
  if (!running()) {
    request->node_gone = true;
    return End(request, IoError("decode node is gone"));
  }
  if (int(waiting_.size()) >= plan_.max_waiting) return End(request, LimitExceeded("the decode node is busy"));
  waiting_.push_back({request, Retry(plan_.retries, request->deadline_ms, Now())});
  After(TimeNs(request->deadline_ms) * kMillisecondNs, [] {});
  Do([] {});
}

void SimDecode::Leave(SimRequest* request) {
  if (request->ended) return;
  world().Note(Seen::kClientLeft);
  Log("client of " + request->Name() + " leaves");
  request->left = true;
  Do([] {});
}

void SimDecode::Admit() {
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    const bool expired = waiting.retry.Expired(Now());
    if (waiting.request->left) {
      End(waiting.request, LimitExceeded("stopped before it began"));
    } else if (expired) {
      End(waiting.request, LimitExceeded("deadline of the request has passed before it began"));
    }
    return waiting.request->ended;
  });
  while (!waiting_.empty() && int(lanes_.size()) < plan_.max_running) {
    auto lane = std::make_unique<Lane>(Lane{.request = waiting_.front().request, .retry = waiting_.front().retry});
    waiting_.pop_front();
    lanes_.push_back(std::move(lane));
  }
}

void SimDecode::End(SimRequest* request, const Status& status) {
  request->ended = true;
  request->ended_at = world().now();
  request->status = status;
  request->node_stopped = stopped_ns();
  request->all_broken = alive() && std::ranges::none_of(links_, &Link::up);
  CheckOutcome(*request, &world());
}

void SimDecode::Release(Lane* lane) {
  if (!lane->now || !lane->now->id) return;
  const RequestId id = *lane->now->id;
  tries_.erase(id);
  transfer().Abort(id, Status(ErrorCode::kLimit, "the decode node needs no more of it"), Now());
  const auto link = std::ranges::find(links_, lane->now->connection, &Link::connection);
  if (link != links_.end() && link->running > 0) --link->running;
  lane->now.reset();
}

void SimDecode::EndLane(Lane* lane, const Status& status) {
  Release(lane);
  lane->request->retries = lane->retry.count();
  if (status.ok()) lane->request->reason = std::get<Finish>(lane->action).reason;
  End(lane->request, status);
}

// --- turns ---

// Once the engine is free: everyone does what needs no step, then all steps run together. Ends and new beginnings are
// followed by another turn.
void SimDecode::Work() {
  while (!engine_busy_ && Turn()) continue;
}

bool SimDecode::Turn() {
  Admit();
  bool may_import = true, changed = false, nobody = false;
  for (auto& lane : lanes_) {
    const Status status = Advance(lane.get(), &may_import);
    nobody |= lane->now == nullptr;
    if (status.ok() && !std::holds_alternative<Finish>(lane->action)) continue;
    changed = true;
    if (!status.ok() && TryAgain(lane.get(), status)) continue;
    EndLane(lane.get(), status);
  }
  std::erase_if(lanes_, [](const auto& lane) { return lane->request->ended; });
  if (changed) return true;
  if (lanes_.size() > 1) std::ranges::rotate(lanes_, lanes_.begin() + 1);
  RunSteps();
  if (nobody && !engine_busy_ && !std::exchange(wake_set_, true)) After(kWaitSlice, [this] { wake_set_ = false; });
  return false;
}

bool SimDecode::Steps(const Lane& lane) {
  return std::holds_alternative<Draft>(lane.action) || std::holds_alternative<Decode>(lane.action) ||
         std::holds_alternative<Check>(lane.action);
}

void SimDecode::RunSteps() {
  int lanes = 0, tokens = 0;
  bool imports = false;
  for (const auto& lane : lanes_) {
    if (!lane->now) continue;
    imports |= lane->now->importing;
    if (!Steps(*lane)) continue;
    ++lanes;
    tokens += FedBy(lane->action);
  }
  if (lanes == 0 && !imports) return;
  if (lanes > 1) world().Note(Seen::kStepShared);
  engine_busy_ = true;
  After(plan_.step_ns + plan_.step_ns * tokens / 8, [this] {
    engine_busy_ = false;
    for (auto& lane : lanes_) {
      if (!lane->now) continue;
      const Status status = lane->now->importing ? FinishImport(lane.get()) : Steps(*lane) ? OnStep(lane.get()) : Ok();
      if (!status.ok()) world().Violate("P2", lane->request->Name() + ": " + status.ToString());
    }
  });
}

// --- one request ---

Status SimDecode::Begin(Lane* lane) {
  SimRequest& request = *lane->request;
  if (request.left) return LimitExceeded("stopped before it began");
  if (lane->retry.Expired(Now())) return LimitExceeded("deadline of the request has passed");
  const Result<int> chosen = ChooseLink(lane->last_peer);
  if (!chosen.ok()) return lane->retry.OnNobody(chosen.status(), Now());
  lane->retry.OnBegin();
  Link& link = links_[std::size_t(*chosen)];
  lane->last_peer = FindPeer(link.connection);
  const auto now = std::make_shared<Try>(&request, live_tries_);
  now->connection = link.connection;
  now->token0 = lane->retry.token0();
  TransferRequest wire;
  wire.tokens = request.prompt;
  wire.codec = SimCodec(request.streams).spec;
  wire.deadline_ms = lane->retry.MillisecondsLeft(Now());
  wire.overlap = request.overlap;
  wire.anchor_first = request.anchor_first;
  now->due = Now() + TimeNs(wire.deadline_ms) * kMillisecondNs;
  request.tried.push_back({link.connection});
  if (!request.began) request.began = world().now();
  LYNX_ASSIGN_OR_RETURN(const RequestId id, transfer().Request(lane->last_peer, wire, Now()));
  ++link.running;
  now->id = id;
  tries_[id] = now;
  request.tried.back().id = id.id;
  open_.insert(id);
  lane->now = now;
  lane->action = Wait{};
  lane->stop_sent = false;
  lane->cells.clear();
  lane->refined = -1;
  request.transferred = false;
  if (world().logs()) Log(request.Name() + " asks " + std::to_string(id.peer) + "/" + std::to_string(id.id));
  return Ok();
}

bool SimDecode::TryAgain(Lane* lane, const Status& why) {
  SimRequest& request = *lane->request;
  if (!lane->now || request.left || lane->retry.Expired(Now())) return false;
  if (!lane->retry.OnFailure(why, request.committed)) return false;
  if (world().logs()) Log(request.Name() + " begins again: " + why.ToString());
  Release(lane);
  lane->action = Wait{};
  return true;
}

Status SimDecode::Advance(Lane* lane, bool* may_import) {
  if (!lane->now) LYNX_RETURN_IF_ERROR(Begin(lane));
  if (!lane->now) return Ok();
  Try& now = *lane->now;
  for (bool rests = false; !rests;) {
    if (lane->request->left && !std::exchange(lane->stop_sent, true))
      LYNX_RETURN_IF_ERROR(now.session.On(StopRequested{}));
    if (std::holds_alternative<Wait>(lane->action)) {
      if (lane->request->random_windows) {
        const auto most = std::uint64_t(lane->request->speculation.max_drafts);
        LYNX_RETURN_IF_ERROR(now.session.On(DraftWindow{int(world().Below(most + 1))}));
      }
      LYNX_RETURN_IF_ERROR(now.failure);
      lane->action = now.session.Next();
      PostJobs(lane->now);
    }
    LYNX_RETURN_IF_ERROR(Act(lane, may_import, &rests));
  }
  return Ok();
}

// Does what needs no step. *rests: there is nothing to do before the next step, event or the end.
Status SimDecode::Act(Lane* lane, bool* may_import, bool* rests) {
  Try& now = *lane->now;
  if (const auto* refine = std::get_if<Refine>(&lane->action)) {
    *rests = true;
    if (!std::exchange(*may_import, false)) return Ok();
    for (const auto& [address, streams] : now.staging) {
      if (int(streams.size()) != refine->stream + 1) {
        world().Violate("P1", lane->request->Name() + ": the staging block is not of stream " +
                                  std::to_string(refine->stream) + " alone");
        return Corrupt("staging block mixes streams");
      }
    }
    if (now.staging.size() != SimPages(int(lane->request->prompt.size())).size()) {
      world().Violate("P1", lane->request->Name() + ": the staging block is not whole");
      return Corrupt("staging block is not whole");
    }
    if (refine->stream > lane->refined + 1) world().Note(Seen::kStreamSkipped);
    now.importing = true;
    lane->importing = now.staging;
    return Ok();
  }
  if (const auto* rollback = std::get_if<Rollback>(&lane->action)) {
    const int keep = rollback->length - lane->request->speculation.prompt_tokens + 1;
    if (keep < 1 || keep > int(lane->cells.size())) return Invalid("rollback to cells that are not there");
    lane->cells.resize(std::size_t(keep));
    LYNX_RETURN_IF_ERROR(now.session.On(RolledBack{}));
  } else if (const auto* commit = std::get_if<Commit>(&lane->action)) {
    TakeCommit(lane, *commit);
  } else {
    *rests = true;
    return Ok();
  }
  lane->action = Wait{};
  return Ok();
}

// P2: what was committed stays.
void SimDecode::TakeCommit(Lane* lane, const Commit& commit) {
  std::vector<Token>& shown = lane->request->committed;
  for (std::size_t i = 0; i < commit.tokens.size(); ++i) {
    const std::size_t index = std::size_t(commit.first_index) + i;
    if (index == shown.size()) {
      shown.push_back(commit.tokens[i]);
    } else if (index > shown.size() || shown[index] != commit.tokens[i]) {
      world().Violate("P2", lane->request->Name() + " takes committed tokens back");
    }
  }
}

Status SimDecode::FinishImport(Lane* lane) {
  Try& now = *lane->now;
  const int stream = std::get<Refine>(lane->action).stream;
  now.importing = false;
  if (now.staging != lane->importing) world().Violate("P1", "the staging block changes while the engine reads it");
  if (lane->cells.size() > 1) world().Violate("P2", "cells of an old quality follow a refined prompt");
  lane->cells = {PromptState(now.staging, stream)};
  lane->refined = stream;
  lane->action = Wait{};
  LYNX_RETURN_IF_ERROR(now.session.On(Refined{stream}));
  PostJobs(lane->now);
  return Ok();
}

Token SimDecode::FeedToken(Lane* lane, Token token) {
  const SpeculatorConfig& config = lane->request->speculation;
  if (config.prompt_tokens + int(lane->cells.size()) > config.context_tokens)
    world().Violate("P4", "the context overflows");
  lane->cells.push_back(Feed(lane->cells.back(), token));
  return NextToken(lane->cells.back(), lane->request->disagreement);
}

Status SimDecode::OnStep(Lane* lane) {
  const SpeculatorAction action = std::exchange(lane->action, Wait{});
  DecodeSession& session = lane->now->session;
  if (const auto* draft = std::get_if<Draft>(&action)) {
    const Token token = FeedToken(lane, draft->feed);
    return session.On(Drafted{token, EndsText(token)});
  }
  if (const auto* decode = std::get_if<Decode>(&action)) {
    const Token token = FeedToken(lane, decode->feed);
    return session.On(Decoded{token, EndsText(token)});
  }
  return Judge(lane, std::get<Check>(action));
}

// As TokenChooser does for coupled sampling.
Status SimDecode::Judge(Lane* lane, const Check& check) {
  Checked checked;
  bool judging = !check.drafts.empty();
  for (std::size_t row = 0; row < check.feed.size(); ++row) {
    const Token token = FeedToken(lane, check.feed[row]);
    if (!judging) continue;
    if (row < check.drafts.size() && token == check.drafts[row]) {
      ++checked.accepted;
      continue;
    }
    judging = false;
    checked.has_replacement = true;
    checked.replacement = token;
    checked.end_of_text = EndsText(token);
  }
  if (check.commit && checked.accepted > 0) world().Note(Seen::kDraftAccepted);
  if (check.commit && checked.accepted < int(check.drafts.size())) world().Note(Seen::kDraftRejected);
  return lane->now->session.On(checked);
}

}  // namespace lynx
