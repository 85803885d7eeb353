#include "engine/llama/sequence_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace lynx {
namespace {

constexpr std::uint32_t kMagic = 0xaf143cd8;
constexpr std::int32_t kBf16 = 30;  // ggml_type

struct Bytes {
  std::vector<std::byte> bytes;
  template <typename T>
  Bytes& Put(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
    return *this;
  }
};

// A state written after the table in the header: rows of layer l are (l + 1) * 4 bytes of K and 2 bytes of V.
std::vector<std::byte> State(int streams, int stream, int first_token, int tokens, int layers, bool values) {
  Bytes out;
  out.Put(kMagic).Put(std::int32_t{7}).Put(std::uint32_t(streams));
  for (int s = 0; s < streams; ++s) {
    out.Put(std::uint32_t(s == stream ? tokens : 0));
    if (s != stream || tokens == 0) continue;
    for (int t = 0; t < tokens; ++t) out.Put(std::int32_t(first_token + t)).Put(std::uint32_t{1}).Put(std::int32_t{7});
    out.Put(std::uint32_t{0}).Put(std::uint32_t(layers));
    for (int kind = 0; kind < (values ? 2 : 1); ++kind) {
      for (int layer = 0; layer < layers; ++layer) {
        const std::uint64_t row = kind == 0 ? std::uint64_t(layer + 1) * 4 : 2;
        out.Put(kBf16).Put(row);
        for (std::uint64_t i = 0; i < row * std::uint64_t(tokens); ++i) out.Put(std::uint8_t(100 * kind + 10 * layer));
      }
    }
  }
  return out.bytes;
}

StateLayout LayoutOf(int streams, int layers, bool values) {
  auto layout = StateLayout::Discover(State(streams, streams - 1, 0, 1, layers, values));
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  return *layout;
}

TEST(SequenceState, LearnsRowsAndStreams) {
  const StateLayout layout = LayoutOf(3, 2, true);
  EXPECT_EQ(layout.streams(), 3);
  EXPECT_EQ(layout.layers(), 2);
  EXPECT_EQ(layout.element_type(), kBf16);
  EXPECT_EQ(layout.RowBytes(1, KvKind::kKey), 8u);
  EXPECT_EQ(layout.RowBytes(1, KvKind::kValue), 2u);
  EXPECT_EQ(LayoutOf(1, 4, false).RowBytes(3, KvKind::kValue), 0u);
}

TEST(SequenceState, FindsEveryRow) {
  for (bool values : {false, true}) {
    for (int stream = 0; stream < 3; ++stream) {
      const StateLayout layout = LayoutOf(3, 4, values);
      const auto bytes = State(3, stream, 5, 33, 4, values);
      ASSERT_EQ(bytes.size(), layout.Bytes(33));
      const auto state = layout.Parse(bytes);
      ASSERT_TRUE(state.ok()) << state.status().ToString();
      EXPECT_EQ(state->stream, stream);
      EXPECT_EQ(state->first_token, 5);
      EXPECT_EQ(state->token_count, 33);
      for (int layer = 0; layer < 4; ++layer) {
        for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
          const std::size_t size = 33 * layout.RowBytes(layer, kind);
          if (size == 0) continue;
          const auto rows = std::span(bytes).subspan(layout.RowsOffset(*state, layer, kind), size);
          const auto expected = std::byte(100 * int(kind) + 10 * layer);
          EXPECT_TRUE(std::ranges::all_of(rows, [&](std::byte b) { return b == expected; }));
        }
      }
    }
  }
}

TEST(SequenceState, FormatEqualsTheTable) {
  const StateLayout layout = LayoutOf(3, 2, true);
  for (int tokens : {0, 1, 31, 256}) {
    std::vector<std::byte> expected = State(3, 1, 0, tokens, 2, true);
    std::vector<std::byte> bytes(10, std::byte(0xee));
    const SequenceState state{1, 0, tokens};
    layout.Format(state, &bytes);
    ASSERT_EQ(bytes.size(), expected.size());
    const auto parsed = layout.Parse(bytes);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->token_count, tokens);
    if (tokens == 0) continue;
    for (int layer = 0; layer < 2; ++layer) {
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        const std::size_t offset = layout.RowsOffset(state, layer, kind);
        std::memcpy(bytes.data() + offset, expected.data() + offset,
                    std::size_t(tokens) * layout.RowBytes(layer, kind));
      }
    }
    // The sequence id is ignored by llama.cpp; the table above writes 7.
    std::int32_t zero = 0;
    std::memcpy(expected.data() + 4, &zero, 4);
    for (int t = 0; t < tokens; ++t) std::memcpy(expected.data() + 20 + 12 * t + 8, &zero, 4);
    EXPECT_EQ(bytes, expected);
  }
}

TEST(SequenceState, EveryTruncationAndEveryWrongFieldIsAnError) {
  const StateLayout layout = LayoutOf(2, 2, true);
  const auto good = State(2, 0, 3, 4, 2, true);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(layout.Parse(std::span(good).first(size)).ok()) << size;
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(layout.Parse(longer).ok());
  // Everything in front of the first row matters, except the sequence ids (bytes 4-7 and 8-11 of each cell) and the
  // first position, which only names the range.
  const std::size_t rows = 16 + 4 * 12 + 8 + 12;
  for (std::size_t at = 0; at < rows; ++at) {
    const bool ignored = (at >= 4 && at < 8) || (at >= 16 && at < 64 && (at - 16) % 12 >= 8);
    if (ignored) continue;
    auto bad = good;
    bad[at] ^= std::byte{0x40};
    EXPECT_FALSE(layout.Parse(bad).ok()) << at;
  }
  EXPECT_FALSE(LayoutOf(1, 2, true).Parse(good).ok());
  EXPECT_FALSE(LayoutOf(2, 2, false).Parse(good).ok());
  EXPECT_FALSE(LayoutOf(2, 3, true).Parse(good).ok());
}

TEST(SequenceState, OtherMemoriesAreUnsupported) {
  const auto code = [](const std::vector<std::byte>& bytes) { return StateLayout::Discover(bytes).status().code(); };
  auto two_caches = State(1, 0, 0, 1, 2, true);
  const auto second = State(1, 0, 0, 1, 2, true);
  two_caches.insert(two_caches.end(), second.begin() + 8, second.end());  // as for sliding windows
  EXPECT_EQ(code(two_caches), ErrorCode::kUnsupported);
  EXPECT_EQ(code(State(1, 0, 0, 2, 2, true)), ErrorCode::kUnsupported);
  EXPECT_EQ(code(State(1, 0, 0, 0, 2, true)), ErrorCode::kUnsupported);
  EXPECT_EQ(code({}), ErrorCode::kUnsupported);
  const auto good = State(1, 0, 0, 1, 2, true);
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::vector<std::byte> part(good.begin(), good.begin() + std::ptrdiff_t(size));
    const auto layout = StateLayout::Discover(part);
    // A cut just behind K looks like a cache without V.
    EXPECT_TRUE(!layout.ok() || layout->RowBytes(0, KvKind::kValue) == 0) << size;
  }
}

}  // namespace
}  // namespace lynx
