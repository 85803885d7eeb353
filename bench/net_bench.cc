// A whole transfer between two nodes over loopback, plaintext and with TLS in turn: MB/s, seconds of processor time per
// GB (both nodes together), and the ratio of the two.
//
//   net_bench [MIB [ROUNDS]]
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "net/certificate_folder_test.h"
#include "net/net_node.h"

namespace lynx {
namespace {

constexpr std::size_t kPageBytes = 128 << 10;

NetOptions OptionsOf(NodeRole role, const TlsOptions& tls) {
  NetOptions options;
  options.node.name = role == NodeRole::kPrefill ? "prefill" : "decode";
  options.node.role = role;
  options.node.epoch = role == NodeRole::kPrefill ? 1 : 2;
  options.node.layout = {{"model", "bench"}};
  options.node.codecs = {"bench"};
  options.tls = tls;
  if (role == NodeRole::kPrefill) options.listen = "127.0.0.1:0";
  return options;
}

// All pages at once; they share their bytes.
void Answer(TransferNode& node, RequestId request, int pages, const SharedBytes& page, TimeNs now) {
  TransferOffer offer;
  offer.token_count = std::uint32_t(pages);
  offer.max_bytes = {std::uint64_t(pages) * kPageBytes};
  (void)node.Offer(request, offer, now);
  (void)node.SendPrefillDone(request, {}, now);
  for (int i = 0; i < pages; ++i) (void)node.PushPage(request, 0, 0, {0, KvKind::kKey, 0, 1, i, 1}, page, now);
  (void)node.EndStream(request, 0, 0, now);
}

struct Figure {
  double mb_per_s = 0;
  double cpu_s_per_gb = 0;
};

Result<Figure> RunOne(const TlsOptions& prefill_tls, const TlsOptions& decode_tls, int pages) {
  const auto page = std::make_shared<const std::vector<std::byte>>(kPageBytes, std::byte{0x5a});
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<NetNode> prefill,
                        NetNode::Start(OptionsOf(NodeRole::kPrefill, prefill_tls),
                                       [&](TransferNode& node, TransferEvent event, TimeNs now) {
                                         const auto* arrived = std::get_if<RequestArrived>(&event);
                                         if (arrived != nullptr) Answer(node, arrived->request, pages, page, now);
                                       }));
  std::mutex mutex;
  std::condition_variable changed;
  bool up = false, finished = false;
  Status status;
  LYNX_ASSIGN_OR_RETURN(const std::unique_ptr<NetNode> decode,
                        NetNode::Start(OptionsOf(NodeRole::kDecode, decode_tls),
                                       [&](TransferNode& node, TransferEvent event, TimeNs now) {
                                         const std::lock_guard lock(mutex);
                                         up = up || std::holds_alternative<PeerUp>(event);
                                         if (const auto* offer = std::get_if<OfferArrived>(&event))
                                           (void)node.AcceptOffer(offer->request, now);
                                         if (const auto* down = std::get_if<PeerDown>(&event)) status = down->status;
                                         if (const auto* end = std::get_if<RequestFinished>(&event))
                                           finished = true, status = end->status;
                                         changed.notify_all();
                                       }));
  LYNX_ASSIGN_OR_RETURN(const PeerId peer, decode->Connect(prefill->listen_address(), kSecondNs));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return up || !status.ok(); });
  LYNX_RETURN_IF_ERROR(status);
  const TimeNs begin = MonotonicNow();
  const std::clock_t cpu = std::clock();
  decode->Post([peer](TransferNode& node, TimeNs now) {
    TransferRequest request;
    request.tokens = {1};
    request.codec = "bench";
    (void)node.Request(peer, request, now);
  });
  changed.wait(lock, [&] { return finished || !status.ok(); });
  LYNX_RETURN_IF_ERROR(status);
  const double gb = double(pages) * kPageBytes / 1e9;
  return Figure{gb * 1e3 * double(kSecondNs) / double(MonotonicNow() - begin),
                double(std::clock() - cpu) / CLOCKS_PER_SEC / gb};
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Status Run(int mib, int rounds) {
  CertificateFolder folder;
  const TlsOptions prefill = folder.Make("prefill", {"decode"}), decode = folder.Make("decode", {"prefill"});
  const int pages = mib * 8;
  std::vector<double> plain_rate, tls_rate, plain_cpu, tls_cpu;
  for (int round = 0; round < rounds; ++round) {
    LYNX_ASSIGN_OR_RETURN(const Figure plain, RunOne({}, {}, pages));
    LYNX_ASSIGN_OR_RETURN(const Figure tls, RunOne(prefill, decode, pages));
    plain_rate.push_back(plain.mb_per_s), plain_cpu.push_back(plain.cpu_s_per_gb);
    tls_rate.push_back(tls.mb_per_s), tls_cpu.push_back(tls.cpu_s_per_gb);
    std::printf("round %d: plaintext %.0f MB/s, TLS %.0f MB/s\n", round + 1, plain.mb_per_s, tls.mb_per_s);
  }
  std::printf("median of %d: plaintext %.0f MB/s, %.2f CPU s/GB; TLS %.0f MB/s, %.2f CPU s/GB; TLS/plaintext %.2f\n",
              rounds, Median(plain_rate), Median(plain_cpu), Median(tls_rate), Median(tls_cpu),
              Median(tls_rate) / Median(plain_rate));
  return Ok();
}

}  // namespace
}  // namespace lynx

int main(int argc, char** argv) {
#ifndef NDEBUG
  std::fprintf(stderr, "net_bench: built with asserts on, its figures would mislead; use the release preset\n");
  return 1;
#endif
  const int mib = argc > 1 ? std::atoi(argv[1]) : 512, rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (argc > 3 || mib < 1 || rounds < 1) {
    std::fprintf(stderr, "net_bench: [MIB [ROUNDS]]\n");
    return 2;
  }
  const lynx::Status status = lynx::Run(mib, rounds);
  if (!status.ok()) std::fprintf(stderr, "net_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
