// Both ends of a transfer without models: synthetic page streams over real sockets, and a plain TCP copy over the same
// path. The namespace test runs one process per machine of its network.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "net/net_node.h"
#include "net/socket.h"

namespace lynx {
namespace {

constexpr std::size_t kPageBytes = 128 << 10;
constexpr std::size_t kUnitBytes = 1 << 10;  // of the sizes that a request carries as its tokens
constexpr TimeNs kPatience = 20 * kSecondNs;

struct Flags {
  std::string order = "strict";  // or fifo
  std::string pull = "on";       // or off
  std::string tls;               // the folder that `lynx certs` made; empty: plaintext
  // prefill
  std::string listen;
  std::string copy_listen;
  // decode
  std::vector<std::string> connect;  // prefill nodes, taking turns
  std::string copy_connect;
  std::uint64_t copy_bytes = 0;
  int requests = 8;
  int interval_ms = 200;
  double start_s = 0;  // on CLOCK_MONOTONIC; 0: at once
  int anchor_kib = 0;  // multiples of a page: 128
  int residual_kib = 0;
};

NetOptions OptionsOf(const Flags& flags, NodeRole role) {
  NetOptions options;
  options.node.name = role == NodeRole::kPrefill ? "prefill" : "decode";
  options.node.role = role;
  options.node.epoch = std::uint64_t(MonotonicNow()) ^ (std::uint64_t(getpid()) << 40);
  options.node.layout = {{"model", "probe"}};
  options.node.codecs = {"probe"};
  options.node.order = flags.order == "fifo" ? SendOrder::kFifo : SendOrder::kStrict;
  options.node.pull = flags.pull == "on";
  options.listen = role == NodeRole::kPrefill ? flags.listen : "";
  options.tls.plaintext = true;
  if (!flags.tls.empty()) {
    const std::string stem = flags.tls + "/" + options.node.name;
    options.tls = {stem + ".pem", stem + ".key", flags.tls + "/ca.pem", {"prefill", "decode"}, false};
  }
  return options;
}

// --- plain copy: zeros until the reader leaves ---

void ServeCopies(const Fd& listener) {
  const std::vector<std::byte> zeros(64 << 10);
  for (;;) {
    if (!WaitReadable(listener, kPatience)) continue;
    const Fd socket = AcceptFrom(listener, {});
    while (socket.valid()) {
      const Result<std::size_t> sent = WriteSome(socket, zeros);
      if (!sent.ok() || (*sent == 0 && !WaitWritable(socket, kPatience))) break;
    }
  }
}

// Bits per second from the first byte to the last.
Result<double> Copy(const Flags& flags) {
  LYNX_ASSIGN_OR_RETURN(const Fd socket, ConnectTo(flags.copy_connect, 5 * kSecondNs, {}));
  std::vector<std::byte> buffer(64 << 10);
  std::uint64_t received = 0;
  TimeNs start = 0;
  while (received < flags.copy_bytes) {
    if (!WaitReadable(socket, kPatience)) return IoError("the plain copy stalled");
    LYNX_ASSIGN_OR_RETURN(const std::size_t count, ReadSome(socket, buffer));
    if (start == 0) {
      start = MonotonicNow();
    } else {
      received += count;
    }
  }
  return double(received) * 8 * double(kSecondNs) / double(MonotonicNow() - start);
}

// --- prefill ---

// Everything of a request at once: the order on the wire is the transfer's own doing.
void Answer(TransferNode& node, const RequestArrived& arrived, const SharedBytes& page_bytes, TimeNs now) {
  const std::vector<Token>& sizes = arrived.body.tokens;
  TransferOffer offer;
  offer.stream_count = std::uint32_t(sizes.size());
  for (const Token size : sizes) {
    offer.max_bytes.push_back(std::uint64_t(size) * kUnitBytes);
    offer.token_count = std::max(offer.token_count, std::uint32_t(offer.max_bytes.back() / kPageBytes));
  }
  (void)node.Offer(arrived.request, offer, now);
  (void)node.SendPrefillDone(arrived.request, {}, now);
  for (int stream = 0; stream < int(sizes.size()); ++stream) {
    const auto pages = int(offer.max_bytes[std::size_t(stream)] / kPageBytes);
    for (int page = 0; page < pages; ++page) {
      (void)node.PushPage(arrived.request, 0, stream, {0, KvKind::kKey, 0, 1, page, 1}, page_bytes, now);
    }
    (void)node.EndStream(arrived.request, 0, stream, now);
  }
}

Status RunPrefill(const Flags& flags) {
  const auto page_bytes = std::make_shared<const std::vector<std::byte>>(kPageBytes, std::byte{0x5a});
  const auto handler = [page_bytes](TransferNode& node, TransferEvent event, TimeNs now) {
    if (const auto* arrived = std::get_if<RequestArrived>(&event)) Answer(node, *arrived, page_bytes, now);
  };
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<NetNode> node,
                        NetNode::Start(OptionsOf(flags, NodeRole::kPrefill), handler));
  LYNX_ASSIGN_OR_RETURN(const Fd copies, ListenOn(flags.copy_listen));
  std::thread([&copies] { ServeCopies(copies); }).detach();
  std::printf("listening on %s\n", node->listen_address().c_str());
  std::fflush(stdout);
  for (;;) pause();
}

// --- decode ---

struct Sample {
  RequestId id;
  TimeNs sent = 0;
  TimeNs anchor_done = 0;
};

class DecodeRun {
 public:
  explicit DecodeRun(const Flags& flags) : flags_(flags) {}

  Result<nlohmann::json> Run() {
    std::optional<double> copy_bps;
    if (!flags_.copy_connect.empty()) {
      LYNX_ASSIGN_OR_RETURN(copy_bps, Copy(flags_));
    }
    LYNX_ASSIGN_OR_RETURN(
        net_, NetNode::Start(OptionsOf(flags_, NodeRole::kDecode), [this](TransferNode& node, TransferEvent event,
                                                                          TimeNs now) { OnEvent(node, event, now); }));
    std::vector<PeerId> peers;
    for (const std::string& address : flags_.connect) {
      LYNX_ASSIGN_OR_RETURN(const PeerId peer, net_->Connect(address, 5 * kSecondNs));
      peers.push_back(peer);
    }
    LYNX_RETURN_IF_ERROR(WaitUntil([&] { return peers_up_ == peers.size(); }));
    const TimeNs start = flags_.start_s == 0 ? MonotonicNow() : TimeNs(flags_.start_s * double(kSecondNs));
    for (int i = 0; i < flags_.requests; ++i) {
      const TimeNs left = start + i * flags_.interval_ms * kMillisecondNs - MonotonicNow();
      if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
      LYNX_RETURN_IF_ERROR(Send(peers[std::size_t(i) % peers.size()]));
    }
    LYNX_RETURN_IF_ERROR(WaitUntil([&] { return int(finished_) == flags_.requests; }));
    return Report(copy_bps);
  }

 private:
  Status Send(PeerId peer) {
    TransferRequest request;
    request.tokens = {flags_.anchor_kib, flags_.residual_kib};
    request.codec = "probe";
    Status status;
    net_->Call([&](TransferNode& node, TimeNs now) {
      const Result<RequestId> id = node.Request(peer, request, now);
      status = id.status();
      const std::lock_guard lock(mutex_);
      if (id.ok()) samples_.push_back({*id, now, 0});
    });
    return status;
  }

  void OnEvent(TransferNode& node, const TransferEvent& event, TimeNs now) {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<PeerUp>(event)) ++peers_up_;
    if (const auto* down = std::get_if<PeerDown>(&event)) failure_ = down->status;
    if (const auto* offer = std::get_if<OfferArrived>(&event)) (void)node.AcceptOffer(offer->request, now);
    if (const auto* completed = std::get_if<StreamCompleted>(&event)) {
      bytes_ += completed->bytes;
      last_ = now;
      for (Sample& sample : samples_) {
        if (completed->stream == 0 && sample.id == completed->request) sample.anchor_done = now;
      }
    }
    if (const auto* finished = std::get_if<RequestFinished>(&event)) {
      ++finished_;
      if (!finished->status.ok()) failure_ = finished->status;
    }
    changed_.notify_all();
  }

  template <typename Condition>
  Status WaitUntil(Condition condition) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::nanoseconds(kPatience), [&] { return !failure_.ok() || condition(); });
    if (!failure_.ok()) return failure_;
    return came ? Ok() : IoError("the transfer stalled");
  }

  nlohmann::json Report(std::optional<double> copy_bps) {
    const std::lock_guard lock(mutex_);
    nlohmann::json report = {{"requests", nlohmann::json::array()},
                             {"bytes", bytes_},
                             {"last_s", double(last_) / double(kSecondNs)},
                             {"copy_bps", copy_bps ? nlohmann::json(*copy_bps) : nlohmann::json(nullptr)}};
    for (const Sample& sample : samples_) {
      report["requests"].push_back({{"peer", sample.id.peer},
                                    {"sent_s", double(sample.sent) / double(kSecondNs)},
                                    {"anchor_done_s", double(sample.anchor_done) / double(kSecondNs)}});
    }
    return report;
  }

  const Flags flags_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Sample> samples_;
  std::size_t peers_up_ = 0;
  std::size_t finished_ = 0;
  std::uint64_t bytes_ = 0;
  TimeNs last_ = 0;
  Status failure_;
  std::unique_ptr<NetNode> net_;  // last: its thread uses the others
};

Status RunDecode(const Flags& flags) {
  DecodeRun run(flags);
  LYNX_ASSIGN_OR_RETURN(const nlohmann::json report, run.Run());
  std::printf("%s\n", report.dump().c_str());
  return Ok();
}

// False for a name that is not known.
bool SetFlag(const std::string& name, const std::string& value, Flags* flags) {
  if (name == "order") {
    flags->order = value;
  } else if (name == "pull") {
    flags->pull = value;
  } else if (name == "tls") {
    flags->tls = value;
  } else if (name == "listen") {
    flags->listen = value;
  } else if (name == "copy-listen") {
    flags->copy_listen = value;
  } else if (name == "connect") {
    flags->connect.push_back(value);
  } else if (name == "copy-connect") {
    flags->copy_connect = value;
  } else if (name == "copy-bytes") {
    flags->copy_bytes = std::stoull(value);
  } else if (name == "requests") {
    flags->requests = std::stoi(value);
  } else if (name == "interval-ms") {
    flags->interval_ms = std::stoi(value);
  } else if (name == "start-at") {
    flags->start_s = std::stod(value);
  } else if (name == "anchor-kib") {
    flags->anchor_kib = std::stoi(value);
  } else if (name == "residual-kib") {
    flags->residual_kib = std::stoi(value);
  } else {
    return false;
  }
  return true;
}

int Main(const std::vector<std::string>& words) {
  Flags flags;
  bool known = !words.empty() && words.size() % 2 == 1 && (words[0] == "prefill" || words[0] == "decode");
  for (std::size_t i = 1; known && i < words.size(); i += 2) {
    known = words[i].starts_with("--") && SetFlag(words[i].substr(2), words[i + 1], &flags);
  }
  if (!known) {
    std::fprintf(stderr, "transfer_probe: prefill or decode, then --NAME VALUE pairs; SetFlag has the names\n");
    return 2;
  }
  const Status status = words[0] == "prefill" ? RunPrefill(flags) : RunDecode(flags);
  if (!status.ok()) std::fprintf(stderr, "transfer_probe: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) { return lynx::Main({argv + 1, argv + argc}); }
