// A client's request, how it ended, and what must hold then.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lynx/speculate.h"
#include "sim/connection.h"
#include "sim/world.h"

namespace lynx {

struct SimRequest {
  int number = 0;
  std::vector<Token> prompt;
  int streams = 1;
  std::uint32_t deadline_ms = 0;  // always given: without one a residual that is held back ends nothing
  bool overlap = true;
  bool anchor_first = true;
  int disagreement = 8;          // NextToken
  bool random_windows = false;   // the draft window is any number at any time, otherwise open
  SpeculatorConfig speculation;  // stream_count aside

  TimeNs submission = 0;  // planned
  bool left = false;      // the client
  TimeNs submitted = 0;
  std::optional<TimeNs> began;  // first sent to a prefill node
  struct Tried {
    const Connection* connection = nullptr;
    std::uint64_t id = 0;  // 0: it was not sent
    bool broken() const { return connection->broken || connection->harmed_requests.contains(id); }
  };
  std::vector<Tried> tried;
  int retries = 0;
  std::vector<Token> committed;  // what the client was shown
  bool transferred = false;      // all streams arrived in the last try

  bool ended = false;
  TimeNs ended_at = 0;
  Status status;
  FinishReason reason = FinishReason::kStopped;
  // What the decode node itself, or all of its connections, went through meanwhile.
  bool node_gone = false;
  TimeNs node_stopped = 0;
  bool all_broken = false;

  std::string Name() const { return "request " + std::to_string(number); }
};

// Notes the outcome and checks P2, P3 and P6.
void CheckOutcome(const SimRequest& request, World* world);

}  // namespace lynx
