#include "serve/kept_conversations.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "serve/kept_caches.h"

namespace lynx {

void KeptConversations::Forget(std::size_t index) {
  bytes_ -= kept_[index].bytes();
  kept_.erase(kept_.begin() + std::ptrdiff_t(index));
}

KeptPrefix KeptConversations::Find(std::string_view codec, std::span<const Token> prompt) {
  if (prompt.empty()) return {};
  auto best = kept_.end();
  int length = kLeastTokens;
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (kept->codec != codec) continue;
    const int common = CommonPrefix(kept->tokens, prompt.first(prompt.size() - 1));
    if (common >= length) best = kept, length = common;
  }
  if (best == kept_.end()) return {};
  std::rotate(best, best + 1, kept_.end());
  return {length, kept_.back().cache};
}

Status KeptConversations::Keep(Engine* engine, SequenceId sequence, std::string_view codec, std::vector<Token> tokens) {
  if (tokens.size() < std::size_t(kLeastTokens)) return Ok();
  const CacheShape& shape = engine->info().shape;
  const std::uint64_t bytes = tokens.size() * (std::uint64_t(shape.BytesPerToken()) + sizeof(Token));
  if (bytes > max_bytes_) return Ok();
  for (std::size_t i = kept_.size(); i-- > 0;) {
    const bool goes_on = kept_[i].codec == codec && kept_[i].tokens.size() <= tokens.size() &&
                         CommonPrefix(kept_[i].tokens, tokens) == int(kept_[i].tokens.size());
    if (goes_on) Forget(i);
  }
  while (bytes_ + bytes > max_bytes_) Forget(0);
  const auto cache = std::make_shared<CacheBlock>(shape, 0, int(tokens.size()));
  LYNX_RETURN_IF_ERROR(engine->ReadBlock(sequence, cache.get()));
  kept_.push_back({std::string(codec), std::move(tokens), cache});
  bytes_ += kept_.back().bytes();
  return Ok();
}

// All of it, then cut: an engine takes whole blocks, and copying one costs as much as writing it.
Status WritePrefix(Engine* engine, SequenceId sequence, const KeptPrefix& kept) {
  LYNX_RETURN_IF_ERROR(engine->WriteBlock(sequence, *kept.cache));
  return engine->Truncate(sequence, kept.tokens);
}

}  // namespace lynx
