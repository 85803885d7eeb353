#include "net/net_node.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "net/recording_node_test.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

struct Pair {
  explicit Pair(int pages = 4, std::size_t page_bytes = 50'000)
      : prefill(Options(NodeRole::kPrefill), pages, page_bytes), decode(Options(NodeRole::kDecode)) {
    peer = decode.Connect(prefill).value();
    EXPECT_TRUE(decode.Wait([this] { return decode.up == 1; }));
    EXPECT_TRUE(prefill.Wait([this] { return prefill.up == 1; }));
  }
  Node prefill, decode;
  PeerId peer = 0;
};

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return double(time.tv_sec) + double(time.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(NetNode, Transfers) {
  Pair pair(40, 100'000);
  for (int i = 1; i <= 3; ++i) {
    pair.decode.SendRequest(pair.peer);
    ASSERT_TRUE(pair.decode.Wait([&] { return pair.decode.finished == i; }));
    ASSERT_TRUE(pair.prefill.Wait([&] { return pair.prefill.finished == i; }));
    EXPECT_TRUE(pair.decode.last_finish.ok()) << pair.decode.last_finish.ToString();
    EXPECT_EQ(pair.decode.bytes, std::uint64_t(i) * 4'000'000);
  }
}

// Sends every thread of the process a signal, all the time, and lets no system call be restarted.
class Signals {
 public:
  Signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++handled_; };
    sigaction(SIGUSR1, &action, &before_);
    thread_ = std::thread([this] {
      while (!over_) {
        for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
          syscall(SYS_tgkill, getpid(), std::stoi(task.path().filename()), SIGUSR1);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  ~Signals() {
    over_ = true;
    thread_.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }
  int handled() const { return handled_; }

 private:
  inline static std::atomic<int> handled_ = 0;
  struct sigaction before_ = {};
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// B12, fault 27: calls that are interrupted, that would block, and that move a few bytes only.
TEST(NetNode, InterruptedCallsAndShortWrites) {
  NetOptions prefill_options = Options(NodeRole::kPrefill), decode_options = Options(NodeRole::kDecode);
  prefill_options.tcp.receive_buffer_bytes = decode_options.tcp.receive_buffer_bytes = 1;  // the least there is
  Node prefill(prefill_options, 20, 100'000), decode(decode_options);
  const Signals signals;
  const PeerId peer = decode.net->Connect(prefill.net->listen_address(), 5 * kSecondNs).value();
  ASSERT_TRUE(decode.Wait([&] { return decode.up == 1; }));
  decode.net->Call([peer](TransferNode& node, TimeNs now) { EXPECT_TRUE(node.Request(peer, Request(), now).ok()); });
  ASSERT_TRUE(decode.Wait([&] { return decode.finished == 1; }, 60));
  EXPECT_TRUE(decode.last_finish.ok()) << decode.last_finish.ToString();
  EXPECT_EQ(decode.bytes, 2'000'000u);
  EXPECT_GT(signals.handled(), 100);
}

TEST(NetNode, TasksRunInOrder) {
  Node node(Options(NodeRole::kDecode));
  std::vector<int> order;
  for (int i = 0; i < 10'000; ++i) node.net->Post([&order, i](TransferNode&, TimeNs) { order.push_back(i); });
  int seen = 0;
  node.net->Call([&](TransferNode&, TimeNs) { seen = int(order.size()); });
  EXPECT_EQ(seen, 10'000);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(NetNode, TasksFromManyThreadsAndFromTasks) {
  Node node(Options(NodeRole::kDecode));
  std::atomic<int> ran = 0;
  std::vector<std::thread> threads;
  for (int who = 0; who < 4; ++who) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        node.net->Post([&](TransferNode&, TimeNs) { node.net->Post([&](TransferNode&, TimeNs) { ++ran; }); });
        node.net->Call([&](TransferNode&, TimeNs) { ++ran; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  node.net->Call([](TransferNode&, TimeNs) {});
  node.net->Call([](TransferNode&, TimeNs) {});
  EXPECT_EQ(ran, 4000);
}

TEST(NetNode, EndsWithTasksWaiting) {
  for (int i = 0; i < 50; ++i) {
    Node node(Options(NodeRole::kPrefill));
    for (int task = 0; task < 100; ++task) node.net->Post([](TransferNode&, TimeNs) {});
  }
}

TEST(NetNode, PeerKilled) {
  const std::size_t before = OpenDescriptors();
  {
    Pair pair(40, 100'000);
    pair.decode.SendRequest(pair.peer);
    pair.prefill.net.reset();
    ASSERT_TRUE(pair.decode.Wait([&] { return pair.decode.down == 1; }));
    EXPECT_EQ(pair.decode.last_down.code(), ErrorCode::kIo);
    EXPECT_TRUE(pair.decode.Wait([&] { return pair.decode.finished == 1; }));
  }
  {
    Pair pair;
    pair.decode.net.reset();
    ASSERT_TRUE(pair.prefill.Wait([&] { return pair.prefill.down == 1; }));
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(NetNode, MismatchIsToldToBoth) {
  Node prefill(Options(NodeRole::kPrefill));
  NetOptions other = Options(NodeRole::kDecode);
  other.node.layout[0].value = "other";
  Node decode(other);
  ASSERT_TRUE(decode.Connect(prefill).ok());
  ASSERT_TRUE(decode.Wait([&] { return decode.down == 1; }));
  ASSERT_TRUE(prefill.Wait([&] { return prefill.down == 1; }));
  EXPECT_THAT(decode.last_down.message(), HasSubstr("model differs"));
  EXPECT_THAT(prefill.last_down.message(), HasSubstr("model differs"));
}

TEST(NetNode, NotLynx) {
  Node prefill(Options(NodeRole::kPrefill));
  const Fd stranger = ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value();
  const std::string text = "GET / HTTP/1.1\r\nHost: somewhere.in.the.network\r\n\r\n";
  ASSERT_TRUE(WriteSome(stranger, std::as_bytes(std::span(text))).ok());
  ASSERT_TRUE(prefill.Wait([&] { return prefill.down == 1; }));
  EXPECT_EQ(ReadToTheEnd(stranger).code(), ErrorCode::kIo) << "the connection is not closed";
}

TEST(NetNode, PortTakenAndNobodyThere) {
  Node prefill(Options(NodeRole::kPrefill));
  NetOptions options = Options(NodeRole::kPrefill);
  options.listen = prefill.net->listen_address();
  EXPECT_EQ(NetNode::Start(options, [](TransferNode&, TransferEvent, TimeNs) {}).status().code(), ErrorCode::kIo);
  const std::string address = prefill.net->listen_address();
  prefill.net.reset();
  Node decode(Options(NodeRole::kDecode));
  EXPECT_EQ(decode.net->Connect(address, kSecondNs).status().code(), ErrorCode::kIo);
}

// A decode node that asks for much and then neither reads nor answers: declared dead by heartbeat, and its socket is
// closed although it takes no more bytes.
TEST(NetNode, PeerThatStopsReadingIsClosed) {
  Node prefill(Options(NodeRole::kPrefill), 200, 100'000);
  const std::size_t before = OpenDescriptors();
  NodeConfig config = Options(NodeRole::kDecode).node;
  config.pull = false;  // grants all at once
  TransferNode decode(config);
  const Fd socket = ConnectTo(prefill.net->listen_address(), kSecondNs, {}).value();
  const PeerId peer = decode.AddPeer(MonotonicNow());
  std::vector<std::byte> buffer(1 << 16);
  bool accepted = false;
  while (!accepted) {
    std::vector<std::byte> out;
    decode.Output(peer, 1 << 16, MonotonicNow(), &out);
    ASSERT_EQ(WriteSome(socket, out).value(), out.size());
    ASSERT_TRUE(WaitReadable(socket, 5 * kSecondNs));
    const std::size_t count = ReadSome(socket, buffer).value();
    decode.Feed(peer, std::span(buffer).first(count), MonotonicNow());
    while (const auto event = decode.Poll()) {
      if (std::holds_alternative<PeerUp>(*event)) {
        ASSERT_TRUE(decode.Request(peer, Request(), MonotonicNow()).ok());
      }
      if (const auto* offer = std::get_if<OfferArrived>(&*event)) {
        ASSERT_TRUE(decode.AcceptOffer(offer->request, MonotonicNow()).ok());
        accepted = true;
      }
    }
  }
  std::vector<std::byte> out;
  decode.Output(peer, 1 << 16, MonotonicNow(), &out);
  ASSERT_EQ(WriteSome(socket, out).value(), out.size());

  ASSERT_TRUE(prefill.Wait([&] { return prefill.down == 1; }));
  EXPECT_EQ(prefill.finished, 1);
  for (int i = 0; i < 500 && OpenDescriptors() > before + 1; ++i) poll(nullptr, 0, 10);
  EXPECT_EQ(OpenDescriptors(), before + 1) << "the dead peer's socket is still open";
}

// More connections than descriptors: the rest waits in the backlog, and accept does not spin.
TEST(NetNode, AcceptStormWithoutDescriptors) {
  Node prefill(Options(NodeRole::kPrefill));
  const auto address = ParseAddress(prefill.net->listen_address()).value();
  std::vector<Fd> clients;
  for (int i = 0; i < 200; ++i) {
    clients.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(clients.back().valid());
  }
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit low = limit;
  low.rlim_cur = rlim_t(clients.back().get()) + 10;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(std::uint16_t(std::stoi(address.port)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (const Fd& client : clients) {
    ASSERT_TRUE(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0 || errno == EINPROGRESS);
  }
  poll(nullptr, 0, 200);
  const double cpu_before = ProcessCpuSeconds();
  const TimeNs begin = MonotonicNow();
  poll(nullptr, 0, 1000);
  const double cpu = ProcessCpuSeconds() - cpu_before;
  EXPECT_LT(cpu, 0.1 * double(MonotonicNow() - begin) / double(kSecondNs)) << "accept spins";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);

  Node decode(Options(NodeRole::kDecode));
  ASSERT_TRUE(decode.Connect(prefill).ok());
  EXPECT_TRUE(decode.Wait([&] { return decode.up == 1; })) << "no connection is accepted after the storm";
}

TEST(NetNode, ManyConnections) {
  Node prefill(Options(NodeRole::kPrefill));
  std::vector<std::unique_ptr<Node>> nodes;
  for (int i = 0; i < 20; ++i) {
    nodes.push_back(std::make_unique<Node>(Options(NodeRole::kDecode)));
    const PeerId peer = nodes.back()->Connect(prefill).value();
    ASSERT_TRUE(nodes.back()->Wait([&] { return nodes.back()->up == 1; }));
    nodes.back()->SendRequest(peer);
  }
  for (auto& node : nodes) {
    ASSERT_TRUE(node->Wait([&] { return node->finished == 1; }));
    EXPECT_TRUE(node->last_finish.ok());
  }
}

}  // namespace
}  // namespace lynx
