// The caches of finished conversations on a decode node, in host memory: of a prompt that goes on with one of them only
// the rest is asked for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/engine.h"

namespace lynx {

// The first tokens of a prompt, and a cache that begins with theirs. None: 0 and null.
struct KeptPrefix {
  int tokens = 0;
  std::shared_ptr<const CacheBlock> cache;
};

class KeptConversations {
 public:
  // Prefixes below this, the tokens of one page, are not worth what a cache costs.
  static constexpr int kLeastTokens = 256;

  // At most `max_bytes` of caches and tokens stay; 0: none.
  explicit KeptConversations(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // The longest beginning of the prompt, its last token excepted, that was kept with this codec. The cache stays as it
  // is as long as it is held, even if it is forgotten here.
  KeptPrefix Find(std::string_view codec, std::span<const Token> prompt);
  // The sequence begins with the cache of `tokens`: reads and keeps it, in place of what it goes on from. What was used
  // least recently makes room.
  Status Keep(Engine* engine, SequenceId sequence, std::string_view codec, std::vector<Token> tokens);

  // Any thread.
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    std::string codec;
    std::vector<Token> tokens;
    std::shared_ptr<const CacheBlock> cache;
    std::uint64_t bytes() const { return cache->bytes() + tokens.size() * sizeof(Token); }
  };
  void Forget(std::size_t index);

  const std::uint64_t max_bytes_;
  std::vector<Kept> kept_;  // least recently used first
  std::atomic<std::uint64_t> bytes_ = 0;
};

// Writes the first kept.tokens tokens to a sequence that is empty.
Status WritePrefix(Engine* engine, SequenceId sequence, const KeptPrefix& kept);

}  // namespace lynx
