#include "serve/exactness.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "serve/token_chooser.h"

namespace lynx {
namespace {

std::string Join(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
  return text;
}

Status DecodeAll(const Codec& codec, const std::map<PageAddress, std::vector<SharedBytes>>& streams,
                 CacheBlock* block) {
  std::vector<std::byte> scratch;
  for (const auto& [address, page_streams] : streams) {
    LYNX_ASSIGN_OR_RETURN(const PageSpan page, block->Page(address));
    std::vector<std::span<const std::byte>> prefix;
    for (const SharedBytes& bytes : page_streams) prefix.push_back(*bytes);
    scratch.resize(std::max(scratch.size(), codec.ScratchBytes(ShapeOf(block->shape(), address))));
    LYNX_RETURN_IF_ERROR(codec.Decode(prefix, page, scratch));
  }
  return Ok();
}

void CopyPrefix(const KeptPrefix& kept, CacheBlock* block) {
  if (kept.tokens == 0) return;
  for (int layer = 0; layer < int(block->shape().layers.size()); ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto to = block->Rows(layer, kind);
      const std::size_t bytes = to.size() / std::size_t(block->token_count()) * std::size_t(kept.tokens);
      std::ranges::copy(kept.cache->Rows(layer, kind).first(bytes), to.begin());
    }
  }
}

// "" if equal, else the first layer that differs.
std::string CompareBlocks(const CacheBlock& expected, const CacheBlock& got) {
  for (int layer = 0; layer < int(expected.shape().layers.size()); ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto a = expected.Rows(layer, kind);
      const auto b = got.Rows(layer, kind);
      if (std::memcmp(a.data(), b.data(), a.size()) != 0) {
        return "the refined cache differs from the received streams in layer " + std::to_string(layer) +
               (kind == KvKind::kKey ? " K" : " V");
      }
    }
  }
  return "";
}

// Tokens 1…count-1, one step after the other.
Result<std::vector<Token>> DecodeSequentially(Engine* engine, SequenceId sequence, Token token0, std::size_t count,
                                              const SamplingOptions& sampling) {
  std::vector<Token> tokens{token0};
  std::vector<float> logits;
  while (tokens.size() < count) {
    const StepInput input{sequence, std::span(&tokens.back(), 1), Logits::kLast};
    LYNX_RETURN_IF_ERROR(engine->Step(std::span(&input, 1), &logits));
    tokens.push_back(SampleToken(logits, sampling, tokens.size()));
  }
  return tokens;
}

Result<Exactness> CheckOn(Engine* engine, SequenceId fresh, SequenceId sequence, const Codec& codec,
                          const std::map<PageAddress, std::vector<SharedBytes>>& streams, int prompt_tokens,
                          const std::vector<Token>& tokens, const SamplingOptions& sampling, const KeptPrefix& kept) {
  CacheBlock expected(engine->info().shape, 0, prompt_tokens);
  CopyPrefix(kept, &expected);
  LYNX_RETURN_IF_ERROR(DecodeAll(codec, streams, &expected));
  CacheBlock refined(engine->info().shape, 0, prompt_tokens);
  LYNX_RETURN_IF_ERROR(engine->ReadBlock(sequence, &refined));
  if (std::string difference = CompareBlocks(expected, refined); !difference.empty())
    return Exactness{false, difference};
  LYNX_RETURN_IF_ERROR(engine->WriteBlock(fresh, expected));
  if (sampling.method == SamplingMethod::kRejection) return Exactness{true, ""};
  LYNX_ASSIGN_OR_RETURN(const std::vector<Token> sequential,
                        DecodeSequentially(engine, fresh, tokens.front(), tokens.size(), sampling));
  if (sequential == tokens) return Exactness{true, ""};
  return Exactness{false, "committed tokens:  " + Join(tokens) + "\nsequential tokens: " + Join(sequential)};
}

}  // namespace

Result<Exactness> CheckExactness(Engine* engine, SequenceId sequence, const Codec& codec,
                                 const std::map<PageAddress, std::vector<SharedBytes>>& streams, int prompt_tokens,
                                 const std::vector<Token>& tokens, const SamplingOptions& sampling,
                                 const KeptPrefix& kept) {
  LYNX_ASSIGN_OR_RETURN(const SequenceId fresh, engine->Open());
  Result<Exactness> result = CheckOn(engine, fresh, sequence, codec, streams, prompt_tokens, tokens, sampling, kept);
  engine->Close(fresh);
  return result;
}

}  // namespace lynx
