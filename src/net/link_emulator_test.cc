#include "net/link_emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "net/plain_copy.h"
#include "net/socket.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

TEST(LinkEmulator, ParseBitRate) {
  const struct {
    const char* text;
    double rate;
  } good[] = {{"100mbit", 1e8}, {"2.5gbit", 2.5e9}, {"250kbit", 2.5e5}, {"8bit", 8},
              {"0", 0},         {"0mbit", 0},       {"unlimited", 0},   {"1e3kbit", 1e6}};
  for (const auto& [text, rate] : good) {
    const auto parsed = ParseBitRate(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_DOUBLE_EQ(*parsed, rate) << text;
  }
  for (const char* text : {"", "mbit", "100", "-1mbit", "1mbit ", " 1mbit", "1 mbit", "1Mbit", "1mbits", "nan", "inf",
                           "nanmbit", "infmbit", "1e999mbit", "1e308gbit", "1e30gbit", "0x10mbit", "1mb", "1,5mbit"}) {
    const auto parsed = ParseBitRate(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), ErrorCode::kInvalid);
    EXPECT_THAT(parsed.status().message(), HasSubstr(text));
  }
}

TEST(LinkEmulator, ParseDuration) {
  const struct {
    const char* text;
    TimeNs time;
  } good[] = {{"1ms", 1'000'000}, {"250us", 250'000}, {"0.5s", 500'000'000}, {"0", 0}, {"0ms", 0}, {"1.5us", 1500}};
  for (const auto& [text, time] : good) {
    const auto parsed = ParseDuration(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, time) << text;
  }
  for (const char* text : {"", "ms", "1", "-1ms", "1 ms", "1min", "nanms", "1e999s", "1e300s", "1e7s"}) {
    const auto parsed = ParseDuration(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), ErrorCode::kInvalid);
  }
}

bool WaitFor(const Fd& socket, short events, int milliseconds = 5000) {
  pollfd polled{socket.get(), events, 0};
  return poll(&polled, 1, milliseconds) > 0;
}

void WriteAll(const Fd& socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = WriteSome(socket, bytes);
    if (!count.ok() || (*count == 0 && !WaitFor(socket, POLLOUT))) return;
    bytes = bytes.subspan(*count);
  }
}

// Everything until the other side ends.
std::vector<std::byte> ReadAll(const Fd& socket) {
  std::vector<std::byte> all, buffer(64 << 10);
  while (WaitFor(socket, POLLIN)) {
    const auto count = ReadSome(socket, buffer);
    if (!count.ok()) break;
    all.insert(all.end(), buffer.begin(), buffer.begin() + std::ptrdiff_t(*count));
  }
  return all;
}

// A link to a listener of its own, and connections over it.
struct Line {
  explicit Line(LinkOptions options) : listener(ListenOn("127.0.0.1:0").value()) {
    options.to = LocalAddress(listener);
    emulator = LinkEmulator::Start(options).value();
  }
  std::pair<Fd, Fd> Connect() {
    Fd near = ConnectTo(emulator->listen_address(), kSecondNs, {}).value();
    EXPECT_TRUE(WaitFor(listener, POLLIN));
    return {std::move(near), AcceptFrom(listener, {})};
  }
  Fd listener;
  std::unique_ptr<LinkEmulator> emulator;
};

LinkOptions Link(double bits_per_second, TimeNs delay = 0) {
  LinkOptions options;
  options.bits_per_second = bits_per_second;
  options.delay = delay;
  return options;
}

TEST(LinkEmulator, Rate) {
  for (const double rate : {50e6, 200e6}) {
    const auto measured = PlainCopyRate(Link(rate), std::uint64_t(rate / 8));  // one second's worth
    ASSERT_TRUE(measured.ok()) << measured.status().ToString();
    EXPECT_GT(*measured, 0.75 * rate);  // a busy machine may leave the link idle for a moment …
    EXPECT_LT(*measured, 1.03 * rate);  // … but it never carries more, its buffer aside
  }
}

// Six seconds at most at a tenth of the memory's speed: the delay alone must not throttle.
TEST(LinkEmulator, UnlimitedRateWithDelay) {
  const auto measured = PlainCopyRate(Link(0, 20 * kMillisecondNs), 30'000'000);
  ASSERT_TRUE(measured.ok()) << measured.status().ToString();
  EXPECT_GT(*measured, 200e6);
}

TEST(LinkEmulator, Delay) {
  const TimeNs delay = 30 * kMillisecondNs;
  Line line(Link(0, delay));
  const auto [near, far] = line.Connect();
  const std::vector<std::byte> byte(1);
  std::vector<std::byte> buffer(10);
  TimeNs fastest = INT64_MAX;
  for (int i = 0; i < 5; ++i) {
    const TimeNs begin = MonotonicNow();
    WriteAll(near, byte);
    ASSERT_TRUE(WaitFor(far, POLLIN));
    ASSERT_EQ(ReadSome(far, buffer).value(), 1u);
    WriteAll(far, byte);
    ASSERT_TRUE(WaitFor(near, POLLIN));
    ASSERT_EQ(ReadSome(near, buffer).value(), 1u);
    fastest = std::min(fastest, MonotonicNow() - begin);
  }
  EXPECT_GE(fastest, 2 * delay);
  EXPECT_LT(fastest, 4 * delay);
}

TEST(LinkEmulator, ConnectionsShareTheRate) {
  Line line(Link(80e6));
  std::pair<Fd, Fd> lines[2] = {line.Connect(), line.Connect()};
  const std::vector<std::byte> bytes(4'000'000);
  std::vector<std::thread> threads;
  TimeNs took[2] = {0, 0};
  const TimeNs begin = MonotonicNow();
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      WriteAll(lines[i].first, bytes);
      lines[i].first = Fd();
    });
    threads.emplace_back([&, i] {
      EXPECT_EQ(ReadAll(lines[i].second).size(), bytes.size());
      took[i] = MonotonicNow() - begin;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double together = double(2 * bytes.size() * 8) / 80e6 * double(kSecondNs);
  EXPECT_GT(double(std::max(took[0], took[1])), 0.95 * together);
  EXPECT_LT(double(std::max(took[0], took[1])), 1.5 * together);
  EXPECT_GT(double(std::min(took[0], took[1])), 0.7 * double(std::max(took[0], took[1]))) << "one was preferred";
}

// What is under way in one direction survives the end of the other.
TEST(LinkEmulator, HalfClose) {
  Line line(Link(40e6, 5 * kMillisecondNs));
  auto [near, far] = line.Connect();
  const std::vector<std::byte> request(1000, std::byte{1});
  WriteAll(near, request);
  ASSERT_EQ(shutdown(near.get(), SHUT_WR), 0);
  EXPECT_EQ(ReadAll(far), request);
  const std::vector<std::byte> answer(500'000, std::byte{2});
  std::thread writer([&, socket = std::move(far)] { WriteAll(socket, answer); });
  EXPECT_TRUE(ReadAll(near) == answer);
  writer.join();
}

TEST(LinkEmulator, OneSideGoneEndsTheOther) {
  Line line(Link(0));
  for (const bool near_goes : {true, false}) {
    auto [near, far] = line.Connect();
    (near_goes ? near : far) = Fd();
    EXPECT_TRUE(ReadAll(near_goes ? far : near).empty());
  }
}

TEST(LinkEmulator, TargetMissing) {
  LinkOptions options;
  options.to = LocalAddress(*ListenOn("127.0.0.1:0"));
  const auto emulator = LinkEmulator::Start(options).value();
  const auto near = ConnectTo(emulator->listen_address(), kSecondNs, {});
  ASSERT_TRUE(near.ok());
  EXPECT_TRUE(WaitFor(*near, POLLIN));
  std::vector<std::byte> buffer(1);
  EXPECT_FALSE(ReadSome(*near, buffer).ok());
}

TEST(LinkEmulator, BadAddresses) {
  LinkOptions options;
  options.to = "nonsense";
  EXPECT_EQ(LinkEmulator::Start(options).status().code(), ErrorCode::kInvalid);
  const auto taken = ListenOn("127.0.0.1:0").value();
  options.listen = options.to = LocalAddress(taken);
  EXPECT_EQ(LinkEmulator::Start(options).status().code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace lynx
