// Acceptance cases B1, B2, B3 and B16 in virtual time, each beside a control that must fail the same check.

#include <gtest/gtest.h>

#include "transfer/link_workload_test.h"

namespace lynx {
namespace {

void Print(const char* name, const WorkloadResult& result) {
  std::printf("%-34s anchor %.3f (max %.3f) goodput %.4f window %llu\n", name, result.anchor_ratio,
              result.max_anchor_ratio, result.goodput, static_cast<unsigned long long>(result.window_bytes));
}

TEST(Priority, AnchorBesideBacklog) {
  const Workload workload;
  const WorkloadResult strict = RunWorkload(workload);
  Print("strict", strict);
  EXPECT_EQ(strict.finished, 16);
  EXPECT_LE(strict.anchor_ratio, 1.10);
  EXPECT_GE(strict.goodput, 0.97);

  Workload fifo = workload;
  fifo.order = SendOrder::kFifo;
  const WorkloadResult control = RunWorkload(fifo);
  Print("fifo", control);
  EXPECT_EQ(control.finished, 16);
  EXPECT_GE(control.anchor_ratio, 2.5);
}

TEST(Priority, Incast) {
  Workload workload;
  workload.prefill_nodes = 2;
  const WorkloadResult pull = RunWorkload(workload);
  Print("incast, pull", pull);
  EXPECT_EQ(pull.finished, 16);
  EXPECT_LE(pull.anchor_ratio, 1.15);
  EXPECT_GE(pull.goodput, 0.97);

  workload.pull = false;
  const WorkloadResult control = RunWorkload(workload);
  Print("incast, sender priority only", control);
  EXPECT_EQ(control.finished, 16);
  EXPECT_GE(control.anchor_ratio, 1.5);
}

TEST(Priority, Outcast) {
  Workload workload;
  workload.decode_nodes = 2;
  const WorkloadResult shared = RunWorkload(workload);
  Print("outcast, one scheduler", shared);
  EXPECT_EQ(shared.finished, 16);
  EXPECT_LE(shared.anchor_ratio, 1.15);
  EXPECT_GE(shared.goodput, 0.97);

  workload.prefill_nodes = 2;  // one node, thus one scheduler, per connection
  const WorkloadResult control = RunWorkload(workload);
  Print("outcast, scheduler per connection", control);
  EXPECT_EQ(control.finished, 16);
  EXPECT_GE(control.anchor_ratio, 1.5);
}

// Whole caches in the order of arrival are complete sooner on average than when all anchors go first.
TEST(Priority, InTurn) {
  Workload workload;
  const WorkloadResult anchors_first = RunWorkload(workload);
  workload.anchor_first = false;
  const WorkloadResult in_turn = RunWorkload(workload);
  Print("in turn", in_turn);
  std::printf("complete: anchors first %.2f, in turn %.2f\n", anchors_first.complete_ratio, in_turn.complete_ratio);
  EXPECT_EQ(in_turn.finished, 16);
  EXPECT_GE(in_turn.goodput, 0.97);
  EXPECT_LE(in_turn.complete_ratio, 0.9 * anchors_first.complete_ratio);
  EXPECT_GE(in_turn.anchor_ratio, 1.5);
}

// One request on the link of the demo, 100 Mbit/s and 1 ms one way.
TEST(Priority, AnchorAloneOnASlowLink) {
  Workload workload;
  workload.requests = 1;
  workload.stream_bytes = 12 << 20;
  workload.link.bytes_per_ns = 0.01195;
  workload.link.delay_ns = kMillisecondNs;
  const WorkloadResult result = RunWorkload(workload);
  Print("100 Mbit/s, alone", result);
  EXPECT_LE(result.anchor_ratio, 1.05);
  EXPECT_GE(result.goodput, 0.97);
}

// The window follows the path: neither throughput nor priority is lost at 10 ms round trip.
TEST(Priority, LongPath) {
  Workload workload;
  workload.link.delay_ns = 5 * kMillisecondNs;
  workload.link.network_bytes = 4 << 20;
  const WorkloadResult result = RunWorkload(workload);
  Print("10 ms round trip", result);
  EXPECT_EQ(result.finished, 16);
  EXPECT_GE(result.goodput, 0.93);
  EXPECT_LE(result.anchor_ratio, 1.35);
}

}  // namespace
}  // namespace lynx
