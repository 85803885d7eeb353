// The model of the simulation: what a prefill node's cache of a prompt is, as page streams, and which token follows.
// Everything is a hash, so that a wrong byte anywhere gives other tokens.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "lynx/codec.h"
#include "lynx/page.h"
#include "lynx/sampling.h"
#include "lynx/transfer.h"

namespace lynx {

inline constexpr int kSimStreams = 3;                 // most
inline constexpr int kSimVocab = 32;                  // the last is end of text
inline constexpr std::uint32_t kSimPageBytes = 9000;  // longest page stream

CacheShape SimShape();
// "sim1" … "sim3": so many streams.
CodecInfo SimCodec(int streams);
std::vector<PageAddress> SimPages(int tokens);

// Equal for equal prompts.
std::uint64_t PromptHash(const std::vector<Token>& prompt);
// The page streams that `source`, one life of a prefill node, makes for a prompt. No two are alike.
SharedBytes SimPageStream(std::uint64_t source, std::uint64_t prompt, const PageAddress& address, int stream);
Token SimToken0(std::uint64_t source, std::uint64_t prompt);
std::uint64_t HashBytes(const std::vector<std::byte>& bytes);

// The hashes of a page's streams from 0 on, as far as they are decoded.
using StagedPages = std::map<PageAddress, std::vector<std::uint64_t>>;

// What a cache holds up to one cell. Without residuals a model is right most of the time.
struct CellState {
  std::array<std::uint64_t, kSimStreams> streams{};  // 0: not there
  bool operator==(const CellState&) const = default;
};
// After the prompt, with the cache that streams 0…last give. Requires that all pages have them.
CellState PromptState(const StagedPages& pages, int last);
CellState Feed(const CellState& before, Token token);
// `disagreement`: one of so many tokens is changed by each residual.
Token NextToken(const CellState& state, int disagreement);
inline bool EndsText(Token token) { return token == kSimVocab - 1; }

}  // namespace lynx
