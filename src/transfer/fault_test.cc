// What must hold whatever the network does: no event but those of the undisturbed run, one terminal state on each side,
// nothing left behind.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "transfer/loopback_test.h"

namespace lynx {
namespace {

using Pieces = Loopback::Pieces;
using Direction = Loopback::Direction;
constexpr Direction kDirections[] = {Loopback::kToPrefill, Loopback::kToDecode};

TestTransfer Small() { return {.streams = 2, .parts = 2, .pages = 1, .page_bytes = 20}; }

TransferRequest RequestWithDeadline() {
  TransferRequest request = TestRequest();
  request.deadline_ms = 300;
  return request;
}

// One request from handshake to end, with `prepare` applied to the pair first.
template <typename Prepare>
std::unique_ptr<Loopback> RunSmall(Prepare prepare) {
  auto pair = std::make_unique<Loopback>();
  pair->transfer = Small();
  prepare(pair.get());
  pair->Run();
  if (auto request = pair->decode.Request(pair->at_decode, TestRequest(), pair->now); request.ok()) pair->Run();
  return pair;
}

const Loopback& Undisturbed() {
  static const std::unique_ptr<Loopback> pair = RunSmall([](Loopback*) {});
  return *pair;
}

Pieces Cut(std::vector<std::byte> bytes, std::size_t piece_bytes) {
  Pieces pieces;
  for (std::size_t at = 0; at < bytes.size(); at += piece_bytes) {
    const auto end = std::min(bytes.size(), at + piece_bytes);
    pieces.emplace_back(bytes.begin() + std::ptrdiff_t(at), bytes.begin() + std::ptrdiff_t(end));
  }
  return pieces;
}

// A disturbed run has seen nothing that the undisturbed one has not, but ends; and each side has at most one terminal
// event, exactly one if it knew of the request.
void ExpectNothingWrong(const Loopback& pair, const std::string& trace) {
  const auto check = [&trace](const std::vector<std::string>& events, const std::vector<std::string>& reference,
                              const TransferNode& node) {
    std::multiset<std::string> allowed(reference.begin(), reference.end());
    for (const std::string& event : events) {
      if (event.rfind("down ", 0) == 0) continue;
      if (event.rfind("finished ", 0) == 0 && event != "finished 1 ok") continue;
      const auto it = allowed.find(event);
      ASSERT_NE(it, allowed.end()) << trace << ": " << event;
      allowed.erase(it);
    }
    EXPECT_LE(CountStarting(events, "finished 1"), 1) << trace;
    EXPECT_LE(CountStarting(events, "down"), 1) << trace;
    EXPECT_EQ(node.OpenRequests(), 0u) << trace;
  };
  check(pair.prefill_events, Undisturbed().prefill_events, pair.prefill);
  check(pair.decode_events, Undisturbed().decode_events, pair.decode);
  EXPECT_EQ(CountStarting(pair.prefill_events, "finished 1"), CountStarting(pair.prefill_events, "request 1")) << trace;
  EXPECT_GE(CountStarting(pair.decode_events, "finished 1"), CountStarting(pair.decode_events, "offer")) << trace;
  for (const PageArrived& page : pair.pages) {
    EXPECT_EQ(*page.bytes, *Small().Bytes(page.part, page.stream, page.address.layer)) << trace;
  }
}

TEST(Fault, EverySplitGivesTheSameEvents) {
  const Loopback& reference = Undisturbed();
  ASSERT_EQ(reference.decode_events.back(), "finished 1 ok");
  for (std::size_t size = 1; size <= 64; ++size) {
    const auto pair = RunSmall([size](Loopback* p) {
      p->on_way = [size](Direction, std::vector<std::byte> bytes) { return Cut(std::move(bytes), size); };
    });
    ASSERT_EQ(pair->decode_events, reference.decode_events) << size;
    ASSERT_EQ(pair->prefill_events, reference.prefill_events) << size;
  }
  for (const Direction direction : kDirections) {
    for (std::size_t cut = 1; cut < reference.carried[direction]; ++cut) {
      const auto pair = RunSmall([&](Loopback* p) {
        p->on_way = [p, cut, direction](Direction d, std::vector<std::byte> bytes) {
          const std::size_t at = cut - std::min(cut, p->carried[d]);
          if (d != direction || at == 0 || at >= bytes.size()) return Pieces{std::move(bytes)};
          std::vector<std::byte> tail(bytes.begin() + std::ptrdiff_t(at), bytes.end());
          bytes.resize(at);
          return Pieces{std::move(bytes), std::move(tail)};
        };
      });
      ASSERT_EQ(pair->decode_events, reference.decode_events) << direction << " " << cut;
      ASSERT_EQ(pair->prefill_events, reference.prefill_events) << direction << " " << cut;
    }
  }
}

TEST(Fault, EveryTruncationEndsOnBothSides) {
  for (const Direction direction : kDirections) {
    for (std::size_t length = 0; length < Undisturbed().carried[direction]; ++length) {
      const auto pair = RunSmall([&](Loopback* p) {
        p->on_way = [p, length, direction](Direction d, std::vector<std::byte> bytes) {
          if (d == direction) bytes.resize(std::min(bytes.size(), length - std::min(length, p->carried[d])));
          return Pieces{std::move(bytes)};
        };
      });
      pair->Disconnect();
      ExpectNothingWrong(*pair, "truncated " + std::to_string(direction) + " at " + std::to_string(length));
      // END and DONE are the last frames: short of them nothing is complete for the sender.
      EXPECT_NE(pair->prefill_events.back(), "finished 1 ok") << length;
    }
  }
}

// B6, faults 6 and 7: a damaged page is sent again, anything else that is damaged ends the connection.
TEST(Fault, EveryBitFlipIsDetected) {
  int healed = 0;
  for (const Direction direction : kDirections) {
    for (std::size_t bit = 0; bit < 8 * Undisturbed().carried[direction]; ++bit) {
      const auto pair = RunSmall([&](Loopback* p) {
        p->on_way = [p, bit, direction](Direction d, std::vector<std::byte> bytes) {
          const std::size_t begin = p->carried[d];
          if (d == direction && bit / 8 >= begin && bit / 8 - begin < bytes.size()) {
            bytes[bit / 8 - begin] ^= std::byte(1 << (bit % 8));
          }
          return Pieces{std::move(bytes)};
        };
      });
      const std::string trace = "bit " + std::to_string(bit) + " to " + std::to_string(direction);
      const auto& events = direction == Loopback::kToDecode ? pair->decode_events : pair->prefill_events;
      if (pair->decode.Stats(pair->at_decode).naks > 0) {
        ++healed;
        EXPECT_EQ(pair->decode_events.back(), "finished 1 ok") << trace;
        EXPECT_EQ(pair->prefill_events.back(), "finished 1 ok") << trace;
        EXPECT_EQ(pair->pages.size(), Undisturbed().pages.size()) << trace;
        for (const PageArrived& page : pair->pages) {
          EXPECT_EQ(*page.bytes, *Small().Bytes(page.part, page.stream, page.address.layer)) << trace;
        }
        continue;
      }
      EXPECT_TRUE(CountStarting(events, "down") == 1 || CountStarting(events, "finished 1 corrupt") == 1) << trace;
      pair->Disconnect();
      ExpectNothingWrong(*pair, trace);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_EQ(healed, 8 * 4 * (20 + int(kPageHeaderBytes)));  // every bit of the payloads of four pages
}

// B7, faults 10 to 12: a frame that never comes, comes twice or comes late gives nothing wrong; a page that is missing
// at END is never taken for complete.
TEST(Fault, EveryFrameLostDoubledOrLate) {
  for (const Direction direction : kDirections) {
    for (const char* what : {"lost", "doubled", "late"}) {
      for (int at = 0, count = at + 1; at < count; ++at) {
        int seen = 0;
        const auto pair = std::make_unique<Loopback>();
        pair->transfer = Small();
        std::vector<std::byte> late;
        pair->on_way = [&](Direction d, std::vector<std::byte> bytes) {
          if (d != direction) return Pieces{std::move(bytes)};
          Pieces frames;
          for (auto& frame : SplitFrames(bytes)) {
            const bool hit = seen++ == at;
            if (hit && std::string(what) == "late") late = frame;
            if (!hit || std::string(what) == "doubled") frames.push_back(frame);
            if (hit && std::string(what) == "doubled") frames.push_back(frame);
            if (!hit && !late.empty()) frames.push_back(std::exchange(late, {}));
          }
          return frames;
        };
        pair->Run();
        if (pair->decode.Request(pair->at_decode, RequestWithDeadline(), pair->now).ok()) {
          pair->Run();
          pair->Wait(kSecondNs);
        }
        pair->Disconnect();
        count = seen;
        const std::string trace =
            std::string(what) + " frame " + std::to_string(at) + " to " + std::to_string(direction);
        ExpectNothingWrong(*pair, trace);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Fault, ConnectionLostAtEveryPoint) {
  for (int at = 0;; ++at) {
    int pieces = 0;
    const auto pair = RunSmall([&](Loopback* p) {
      p->on_way = [](Direction, std::vector<std::byte> bytes) { return Cut(std::move(bytes), 11); };
      p->after_piece = [p, &pieces, at] {
        if (pieces++ == at) p->Disconnect();
      };
    });
    if (pieces <= at) {
      EXPECT_GT(at, 100);
      break;
    }
    ExpectNothingWrong(*pair, "lost after " + std::to_string(at));
    EXPECT_EQ(CountStarting(pair->decode_events, "down"), 1);
    EXPECT_EQ(CountStarting(pair->prefill_events, "down"), 1);
  }
}

// The peer stops without a word: heartbeats give the verdict within 2 s.
TEST(Fault, PeerSilentFromEveryPoint) {
  for (int at = 0;; at += 5) {
    int pieces = 0;
    const auto pair = RunSmall([&](Loopback* p) {
      p->on_way = [&pieces, at](Direction, std::vector<std::byte> bytes) {
        return pieces >= at ? Pieces{} : Cut(std::move(bytes), 11);
      };
      p->after_piece = [&pieces] { ++pieces; };
    });
    if (pieces < at) {
      EXPECT_GT(at, 100);
      break;
    }
    const bool was_up = CountStarting(pair->decode_events, "up") == 1 && CountStarting(pair->prefill_events, "up") == 1;
    pair->Wait(was_up ? 2 * kSecondNs : 6 * kSecondNs);
    ExpectNothingWrong(*pair, "silent after " + std::to_string(at));
    EXPECT_EQ(CountStarting(pair->decode_events, "down"), 1) << at;
    EXPECT_EQ(CountStarting(pair->prefill_events, "down"), 1) << at;
  }
}

TEST(Fault, AbortAtEveryPointFromEitherSide) {
  for (const bool by_prefill : {true, false}) {
    for (int at = 0;; ++at) {
      int pieces = 0;
      const auto pair = RunSmall([&](Loopback* p) {
        p->on_way = [](Direction, std::vector<std::byte> bytes) { return Cut(std::move(bytes), 11); };
        p->after_piece = [p, &pieces, at, by_prefill] {
          if (pieces++ != at) return;
          if (by_prefill) {
            p->prefill.Abort({p->at_prefill, 1}, EngineError("stop"), p->now);
          } else {
            p->decode.Abort({p->at_decode, 1}, EngineError("stop"), p->now);
          }
          p->Serve();
        };
      });
      if (pieces <= at) {
        EXPECT_GT(at, 100);
        break;
      }
      ExpectNothingWrong(*pair, "abort after " + std::to_string(at));
      EXPECT_EQ(CountStarting(pair->decode_events, "down") + CountStarting(pair->prefill_events, "down"), 0) << at;
      // The connection is as good as before.
      pair->on_way = nullptr;
      pair->after_piece = nullptr;
      pair->Request();
      pair->Run();
      EXPECT_EQ(pair->decode_events.back(), "finished 2 ok") << at;
      EXPECT_EQ(pair->prefill_events.back(), "finished 2 ok") << at;
    }
  }
}

}  // namespace
}  // namespace lynx
