#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/loopback.h"

namespace lynx {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TransferNode, WholeTransfer) {
  Loopback pair;
  pair.Run();
  pair.Request();
  EXPECT_EQ(pair.decode.OpenRequests(), 1u);
  pair.Run();
  EXPECT_THAT(pair.prefill_events, ElementsAre("up decode", "request 1", "finished 1 ok"));
  ASSERT_EQ(pair.pages.size(), 18u);
  for (const PageArrived& page : pair.pages) {
    EXPECT_EQ(*page.bytes, *pair.transfer.Bytes(page.part, page.stream, page.address.layer));
    EXPECT_EQ(page.address, pair.transfer.Address(page.part, page.address.layer));
  }
  // 6 pages of 100 to 102 bytes a stream, one frame each (68 bytes of headers).
  EXPECT_THAT(pair.decode_events, Contains("complete 0 606/1014"));
  EXPECT_EQ(CountStarting(pair.decode_events, "complete"), 3);
  EXPECT_EQ(pair.decode_events.back(), "finished 1 ok");
  EXPECT_EQ(pair.decode.OpenRequests(), 0u);
  EXPECT_EQ(pair.prefill.OpenRequests(), 0u);
  EXPECT_GT(pair.decode.Stats(pair.at_decode).min_rtt_ns, 0);
}

TEST(TransferNode, StreamsComeInOrder) {
  Loopback pair;
  pair.Run();
  pair.Request();
  pair.Run();
  for (std::size_t i = 1; i < pair.pages.size(); ++i) EXPECT_LE(pair.pages[i - 1].stream, pair.pages[i].stream);
}

}  // namespace
}  // namespace lynx
