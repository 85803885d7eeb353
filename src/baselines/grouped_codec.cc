#include "baselines/grouped_codec.h"

#include <algorithm>

#include "baselines/numbers.h"

namespace lynx {
namespace {

// The first `tokens` tokens of a page in groups of at most `size`: of tokens in each channel of K, of channels in each
// head and token of V.
template <typename Visit>
void ForEachGroup(const PageDims& dims, int tokens, int size, Visit visit) {
  const std::size_t channels = std::size_t(dims.channels);
  if (dims.address.kind == KvKind::kKey) {
    for (int first = 0; first < tokens; first += size) {
      for (std::size_t c = 0; c < channels; ++c)
        visit(Strided{first * channels + c, channels, std::min(size, tokens - first)});
    }
    return;
  }
  const int head_dim = dims.head_dim();
  for (std::size_t head = 0; head < std::size_t(tokens) * std::size_t(dims.address.head_count); ++head) {
    for (int first = 0; first < head_dim; first += size) {
      visit(Strided{head * std::size_t(head_dim) + std::size_t(first), 1, std::min(size, head_dim - first)});
    }
  }
}

Grid PutGridOf(const float* values, const Strided& group, int levels, BitWriter* out) {
  float least = values[group.first], greatest = least;
  for (int i = 1; i < group.count; ++i) {
    least = std::min(least, values[group.At(i)]);
    greatest = std::max(greatest, values[group.At(i)]);
  }
  return PutGrid(least, greatest, levels, out);
}

// Of the page's tokens, how many belong to the last `count` of the prompt; 0 when the prompt's end is not known.
int TokensInTail(const PageDims& dims, int count) {
  return dims.tokens_after < 0 ? 0 : std::clamp(count - dims.tokens_after, 0, dims.tokens);
}
std::int64_t PromptTokens(const PageDims& dims) {
  return std::int64_t{dims.address.first_token} + dims.tokens + dims.tokens_after;
}

constexpr int kTailBits = 9;  // 0…256

// The number of tokens at the end of the page that stay BF16, and their elements.
void PutTail(const float* values, const PageDims& dims, int tail, BitWriter* out) {
  out->Put(std::uint32_t(tail), kTailBits);
  const std::size_t elements = dims.elements();
  for (std::size_t i = elements - std::size_t(tail) * std::size_t(dims.channels); i < elements; ++i) {
    PutBf16(values[i], out);
  }
}
// The same number, or -1.
int GetTail(const PageDims& dims, float* values, BitReader* in) {
  const int tail = int(in->Get(kTailBits));
  if (tail > dims.tokens) return -1;
  const std::size_t elements = dims.elements();
  for (std::size_t i = elements - std::size_t(tail) * std::size_t(dims.channels); i < elements; ++i) {
    values[i] = GetBf16(in);
  }
  return tail;
}

constexpr int kSpecLevels = 16;

}  // namespace

KiviCodec::KiviCodec(const std::string& spec, const CacheShape& shape, int bits, int group, int window)
    : BaselineCodec(spec, CodecId::kKivi, shape), bits_(bits), group_(group), window_(window) {}

void KiviCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch) const {
  int last = window_;
  if (dims.address.kind == KvKind::kKey && window_ > 0) last = PromptTokens(dims) % window_;
  const int tail = TokensInTail(dims, last);
  PutTail(values, dims, tail, &streams[0]);
  ForEachGroup(dims, dims.tokens - tail, group_, [&](const Strided& group) {
    const Grid grid = PutGridOf(values, group, 1 << bits_, &streams[0]);
    for (int i = 0; i < group.count; ++i) {
      streams[0].Put(std::uint32_t(grid.LevelOf(values[group.At(i)])), bits_);
    }
  });
}

bool KiviCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch) const {
  const int tail = GetTail(dims, values, &streams[0]);
  if (tail < 0) return false;
  ForEachGroup(dims, dims.tokens - tail, group_, [&](const Strided& group) {
    const Grid grid = GetGrid(1 << bits_, &streams[0]);
    for (int i = 0; i < group.count; ++i) {
      values[group.At(i)] = grid.ValueOf(float(streams[0].Get(bits_)));
    }
  });
  return true;
}

QuantSpecCodec::QuantSpecCodec(const std::string& spec, const CacheShape& shape, int group, bool buffer)
    : BaselineCodec(spec, CodecId::kQuantSpec, shape, 2), group_(group), buffer_(buffer) {}

void QuantSpecCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch) const {
  const int tail = buffer_ ? TokensInTail(dims, group_ + PromptTokens(dims) % group_) : 0;
  PutTail(values, dims, tail, &streams[0]);
  ForEachGroup(dims, dims.tokens - tail, group_, [&](const Strided& group) {
    const Grid grid = PutGridOf(values, group, kSpecLevels, &streams[0]);
    const float finer = grid.step / 16.0f;
    for (int i = 0; i < group.count; ++i) {
      const float value = values[group.At(i)];
      const int level = grid.LevelOf(value);
      const float rest = value - grid.ValueOf(float(level));
      const int residual = std::clamp(finer > 0.0f ? NearestInteger(rest / finer) : 0, -8, 7);
      streams[0].Put(std::uint32_t(level), 4);
      streams[1].Put(std::uint32_t(residual & 15), 4);
    }
  });
}

bool QuantSpecCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch) const {
  const int tail = GetTail(dims, values, &streams[0]);
  if (tail < 0) return false;
  ForEachGroup(dims, dims.tokens - tail, group_, [&](const Strided& group) {
    const Grid grid = GetGrid(kSpecLevels, &streams[0]);
    for (int i = 0; i < group.count; ++i) {
      const float level = float(streams[0].Get(4));
      const float residual = streams.size() > 1 ? float(SignedNibble(int(streams[1].Get(4)))) : 0.0f;
      values[group.At(i)] = grid.ValueOf(level + residual / 16.0f);
    }
  });
  return true;
}

}  // namespace lynx
