#include "net/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <vector>

namespace lynx {
namespace {

using ::testing::HasSubstr;

TEST(Socket, ParseAddress) {
  const struct {
    const char* text;
    const char* host;
    const char* port;
  } good[] = {
      {"127.0.0.1:7000", "127.0.0.1", "7000"},
      {"node-a.local:0", "node-a.local", "0"},
      {":65535", "", "65535"},
      {"[::1]:80", "::1", "80"},
      {"[]:80", "", "80"},
      {"::1:80", "::1", "80"},
  };
  for (const auto& [text, host, port] : good) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.status().ToString();
    EXPECT_EQ(address->host, host) << text;
    EXPECT_EQ(address->port, port) << text;
  }
  for (const char* text : {"", ":", "host", "host:", "7000", "host:65536", "host:99999", "host:100000", "host:12x",
                           "host:-1", "host: 1", "host:http", "[::1]:"}) {
    const auto address = ParseAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), ErrorCode::kInvalid) << text;
    EXPECT_THAT(address.status().message(), HasSubstr("write")) << text;
  }
}

TEST(Socket, PortTaken) {
  const auto first = ListenOn("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const std::string address = LocalAddress(*first);
  EXPECT_THAT(address, HasSubstr("127.0.0.1:"));
  EXPECT_NE(address, "127.0.0.1:0");
  const auto second = ListenOn(address);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kIo);
  EXPECT_THAT(second.status().message(), HasSubstr(address));
  EXPECT_THAT(second.status().message(), HasSubstr("choose another port or stop what listens there"));
}

TEST(Socket, NobodyListens) {
  std::string address;
  {
    const auto listener = ListenOn("127.0.0.1:0");
    address = LocalAddress(*listener);
  }
  const auto socket = ConnectTo(address, kSecondNs, {});
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.status().code(), ErrorCode::kIo);
  EXPECT_THAT(socket.status().message(), HasSubstr(address));
  EXPECT_THAT(socket.status().message(), HasSubstr("is `lynx prefill` running there?"));
  EXPECT_EQ(ConnectTo("no.such.host.invalid:1", kSecondNs, {}).status().code(), ErrorCode::kIo);
  EXPECT_EQ(ConnectTo("nonsense", kSecondNs, {}).status().code(), ErrorCode::kInvalid);
}

// A full backlog never answers: the kernel drops the SYN.
TEST(Socket, ConnectGivesUp) {
  const auto listener = ListenOn("127.0.0.1:0");
  ASSERT_EQ(listen(listener->get(), 0), 0);
  std::vector<Fd> held;
  const TimeNs begin = MonotonicNow();
  Status status;
  for (int i = 0; i < 8 && status.ok(); ++i) {
    auto socket = ConnectTo(LocalAddress(*listener), 50 * kMillisecondNs, {});
    status = socket.status();
    if (socket.ok()) held.push_back(std::move(socket).value());
  }
  EXPECT_EQ(status.code(), ErrorCode::kIo);
  EXPECT_LT(MonotonicNow() - begin, 5 * kSecondNs);
}

TEST(Socket, ReadAndWrite) {
  const auto listener = ListenOn("127.0.0.1:0");
  EXPECT_FALSE(AcceptFrom(*listener, {}).valid());
  TcpOptions tcp;
  tcp.congestion_control = "no such algorithm";  // keeps the default
  auto near = ConnectTo(LocalAddress(*listener), kSecondNs, tcp);
  ASSERT_TRUE(near.ok()) << near.status().ToString();
  pollfd waiting{listener->get(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 1000), 1);
  Fd far = AcceptFrom(*listener, tcp);
  ASSERT_TRUE(far.valid());

  std::vector<std::byte> buffer(100);
  EXPECT_EQ(ReadSome(far, buffer).value(), 0u);
  const std::vector<std::byte> bytes(10, std::byte{7});
  EXPECT_EQ(WriteSome(*near, bytes).value(), 10u);
  waiting = {far.get(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 1000), 1);
  EXPECT_EQ(ReadSome(far, buffer).value(), 10u);
  EXPECT_EQ(buffer[9], std::byte{7});

  // A reader that takes nothing: the writer blocks, then goes on where it was.
  const std::vector<std::byte> much(1 << 20);
  std::size_t written = 0;
  for (std::size_t count = 1; count > 0; written += count) {
    const auto result = WriteSome(*near, much);
    ASSERT_TRUE(result.ok());
    count = *result;
  }
  std::size_t read = 0;
  while (read < written) {
    ASSERT_EQ(poll(&waiting, 1, 1000), 1);
    read += ReadSome(far, buffer).value();
  }
  EXPECT_EQ(read, written);

  near = IoError("closed");
  ASSERT_EQ(poll(&waiting, 1, 1000), 1);
  EXPECT_THAT(ReadSome(far, buffer).status().message(), HasSubstr("closed by the peer"));
  for (int i = 0; i < 100 && WriteSome(far, much).ok(); ++i) poll(nullptr, 0, 1);
  EXPECT_EQ(WriteSome(far, much).status().code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace lynx
