#include "sim/sim_model.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/random.h"

namespace lynx {
namespace {

std::uint64_t HashAddress(const PageAddress& address) {
  std::uint64_t hash = std::uint64_t(address.layer) << 1 | std::uint64_t(address.kind);
  for (const int value : {address.first_head, address.head_count, address.first_token, address.token_count}) {
    hash = Mix64(hash) ^ std::uint64_t(value);
  }
  return Mix64(hash);
}

// Mostly short; some are cut into several frames of the smallest size.
std::size_t PageBytes(std::uint64_t hash) {
  const std::uint64_t kind = hash % 32;
  const std::uint64_t most = kind == 0 ? kSimPageBytes : kind < 4 ? 2500 : kind < 24 ? 500 : 20;
  return 1 + (hash >> 8) % most;
}

}  // namespace

CacheShape SimShape() {
  CacheShape shape;
  shape.layers.assign(2, LayerShape{.kv_heads = 1, .key_dim = 4, .value_dim = 4, .rope = {}});
  return shape;
}

CodecInfo SimCodec(int streams) {
  CodecInfo info;
  info.name = info.spec = "sim" + std::to_string(streams);
  info.stream_count = streams;
  info.page_tokens = 8;
  return info;
}

std::vector<PageAddress> SimPages(int tokens) {
  return PagesOf(SimShape(), 0, tokens, SimCodec(1).page_tokens, SimCodec(1).heads_per_page);
}

std::uint64_t PromptHash(const std::vector<Token>& prompt) {
  std::uint64_t hash = prompt.size();
  for (const Token token : prompt) hash = Mix64(hash ^ std::uint64_t(token));
  return hash;
}

SharedBytes SimPageStream(std::uint64_t source, std::uint64_t prompt, const PageAddress& address, int stream) {
  const std::uint64_t hash = Mix64(source ^ Mix64(prompt ^ Mix64(HashAddress(address) ^ std::uint64_t(stream))));
  auto bytes = std::make_shared<std::vector<std::byte>>(PageBytes(hash));
  Random random(hash);
  for (std::size_t at = 0; at < bytes->size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.Next();
    std::memcpy(bytes->data() + at, &word, std::min(sizeof word, bytes->size() - at));
  }
  return bytes;
}

Token SimToken0(std::uint64_t source, std::uint64_t prompt) {
  return Token(Mix64(source ^ Mix64(prompt + 1)) % kSimVocab);
}

std::uint64_t HashBytes(const std::vector<std::byte>& bytes) {
  std::uint64_t hash = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    hash = Mix64(hash ^ word);
  }
  return hash;
}

CellState PromptState(const StagedPages& pages, int last) {
  CellState state;
  for (int stream = 0; stream <= last; ++stream) {
    std::uint64_t hash = std::uint64_t(stream) + 1;
    for (const auto& [address, streams] : pages) {
      LYNX_CHECK(int(streams.size()) > last);
      hash = Mix64(hash ^ streams[std::size_t(stream)]);
    }
    state.streams[std::size_t(stream)] = hash | 1;
  }
  return state;
}

CellState Feed(const CellState& before, Token token) {
  CellState after;
  for (std::size_t stream = 0; stream < after.streams.size(); ++stream) {
    if (before.streams[stream] != 0) after.streams[stream] = Mix64(before.streams[stream] ^ std::uint64_t(token)) | 1;
  }
  return after;
}

Token NextToken(const CellState& state, int disagreement) {
  std::uint64_t from = state.streams[0];
  for (std::size_t stream = 1; stream < state.streams.size(); ++stream) {
    const std::uint64_t residual = state.streams[stream];
    if (residual != 0 && (residual >> 40) % std::uint64_t(disagreement) == 0) from = residual;
  }
  return Token((from >> 8) % kSimVocab);
}

}  // namespace lynx
