#include "baselines/kvquant_codec.h"

#include <algorithm>
#include <bit>

#include "baselines/numbers.h"

namespace lynx {
namespace {

constexpr int kMaxLevels = 16;
constexpr int kCells = 1024;  // of the histogram that levels are fitted to
constexpr int kRounds = 50;   // of Lloyd's iteration

// The values that are normalised together. K: channels, V: tokens; of rows [tokens][channels].
template <typename Visit>
void ForEachVector(KvKind kind, int tokens, int channels, Visit visit) {
  if (kind == KvKind::kKey) {
    for (int c = 0; c < channels; ++c) visit(Strided{std::size_t(c), std::size_t(channels), tokens});
  } else {
    for (int t = 0; t < tokens; ++t) visit(Strided{std::size_t(t) * std::size_t(channels), 1, channels});
  }
}

int IndexBits(int count) { return std::bit_width(unsigned(count - 1)); }

// Where a value lies between the least and the greatest that are not outliers, as both are stored.
struct Range {
  float low = 0;
  float width = 0;
  float Normal(float value) const { return width > 0.0f ? std::clamp((value - low) / width, 0.0f, 1.0f) : 0.0f; }
};

// Levels in [0, 1], ascending.
struct Codebook {
  float levels[kMaxLevels] = {};
  int count = 0;
  int LevelOf(float normal) const {
    int level = 0;
    for (int i = 1; i < count; ++i) level += normal > (levels[i - 1] + levels[i]) / 2.0f ? 1 : 0;
    return level;
  }
};

// Least squares for the histogram: k-means in one dimension, begun at quantiles.
Codebook FitCodebook(const std::uint32_t* histogram, int levels) {
  Codebook book;
  book.count = levels;
  std::uint64_t all = 0, seen = 0;
  for (int cell = 0; cell < kCells; ++cell) all += histogram[cell];
  for (int cell = 0, level = 0; cell < kCells && level < levels; ++cell) {
    seen += histogram[cell];
    while (level < levels && seen * std::uint64_t(2 * levels) >= all * std::uint64_t(2 * level + 1)) {
      book.levels[level++] = (float(cell) + 0.5f) / float(kCells);
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    double sums[kMaxLevels] = {}, counts[kMaxLevels] = {};
    for (int cell = 0; cell < kCells; ++cell) {
      const float center = (float(cell) + 0.5f) / float(kCells);
      const int level = book.LevelOf(center);
      sums[level] += double(histogram[cell]) * double(center);
      counts[level] += double(histogram[cell]);
    }
    for (int i = 0; i < levels; ++i) {
      if (counts[i] > 0) book.levels[i] = float(sums[i] / counts[i]);
    }
    std::sort(book.levels, book.levels + levels);
  }
  return book;
}

}  // namespace

KvQuantCodec::KvQuantCodec(const std::string& spec, const CacheShape& shape, int bits, double outliers)
    : BaselineCodec(spec, CodecId::kKvQuant, shape), bits_(bits), outliers_(outliers), ropes_(shape, kPageTokens) {}

int KvQuantCodec::OutliersPerSide(int count) const { return int(outliers_ / 2 * count + 0.5); }

std::size_t KvQuantCodec::PageWorkBytes(const PageDims& dims) const {
  const auto longest = std::size_t(std::max(dims.channels, dims.tokens));
  return Scratch::BytesFor<float>(dims.elements()) + Scratch::BytesFor<bool>(dims.elements()) +
         Scratch::BytesFor<Range>(longest) + Scratch::BytesFor<int>(longest) + Scratch::BytesFor<std::uint32_t>(kCells);
}

// The sequence's first token (BF16), if it is in the page. Per vector: least and width of the range without outliers
// (FP16), outliers as index and value (BF16). The levels (FP16) of the page. Then the codes of all that is not an
// outlier, vector by vector.
void KvQuantCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams,
                         Scratch scratch) const {
  BitWriter* out = &streams[0];
  const int channels = dims.channels, head_dim = dims.head_dim();
  const int sinks = dims.address.first_token == 0 ? 1 : 0, tokens = dims.tokens - sinks;
  for (int i = 0; i < sinks * channels; ++i) PutBf16(values[i], out);
  if (tokens == 0) return;
  const std::size_t elements = std::size_t(tokens) * std::size_t(channels);
  float* rows = scratch.Take<float>(dims.elements());
  bool* outlier = scratch.Take<bool>(dims.elements());
  Range* ranges = scratch.Take<Range>(std::size_t(std::max(channels, dims.tokens)));
  int* order = scratch.Take<int>(std::size_t(std::max(channels, dims.tokens)));
  auto* histogram = scratch.Take<std::uint32_t>(kCells);
  std::copy_n(values + sinks * channels, elements, rows);
  std::fill_n(outlier, elements, false);
  std::fill_n(histogram, kCells, 0u);
  if (const RopeTable* rope = ropes_.Of(dims.address)) {
    for (std::size_t head = 0; head < elements / std::size_t(head_dim); ++head) {
      rope->Unrotate(rows + head * std::size_t(head_dim), sinks + int(head) / dims.address.head_count);
    }
  }

  Range* range = ranges;
  ForEachVector(dims.address.kind, tokens, channels, [&](const Strided& vector) {
    for (int i = 0; i < vector.count; ++i) order[i] = i;
    std::sort(order, order + vector.count, [&](int a, int b) {
      return rows[vector.At(a)] != rows[vector.At(b)] ? rows[vector.At(a)] < rows[vector.At(b)] : a < b;
    });
    const int side = OutliersPerSide(vector.count);
    const float least = rows[vector.At(order[side])], greatest = rows[vector.At(order[vector.count - 1 - side])];
    range->low = PutF16(F16Down(least), out);
    range->width = PutF16(F16Up(greatest - range->low), out);
    for (int i = 0; i < 2 * side; ++i) {
      const int index = order[i < side ? i : vector.count - 1 - (i - side)];
      outlier[vector.At(index)] = true;
      out->Put(std::uint32_t(index), IndexBits(vector.count));
      PutBf16(rows[vector.At(index)], out);
    }
    for (int i = 0; i < vector.count; ++i) {
      if (!outlier[vector.At(i)])
        ++histogram[std::min(int(range->Normal(rows[vector.At(i)]) * float(kCells)), kCells - 1)];
    }
    ++range;
  });

  Codebook book = FitCodebook(histogram, 1 << bits_);
  for (int i = 0; i < book.count; ++i) book.levels[i] = PutF16(FloatToF16(book.levels[i]), out);
  range = ranges;
  ForEachVector(dims.address.kind, tokens, channels, [&](const Strided& vector) {
    for (int i = 0; i < vector.count; ++i) {
      const std::size_t at = vector.At(i);
      if (!outlier[at]) out->Put(std::uint32_t(book.LevelOf(range->Normal(rows[at]))), bits_);
    }
    ++range;
  });
}

bool KvQuantCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const {
  BitReader* in = &streams[0];
  const int channels = dims.channels, head_dim = dims.head_dim();
  const int sinks = dims.address.first_token == 0 ? 1 : 0, tokens = dims.tokens - sinks;
  for (int i = 0; i < sinks * channels; ++i) values[i] = GetBf16(in);
  if (tokens == 0) return true;
  const std::size_t elements = std::size_t(tokens) * std::size_t(channels);
  float* rows = values + sinks * channels;
  bool* outlier = scratch.Take<bool>(dims.elements());
  Range* ranges = scratch.Take<Range>(std::size_t(std::max(channels, dims.tokens)));
  std::fill_n(outlier, elements, false);

  bool possible = true;
  Range* range = ranges;
  ForEachVector(dims.address.kind, tokens, channels, [&](const Strided& vector) {
    range->low = GetF16(in);
    range->width = GetF16(in);
    ++range;
    for (int i = 0; i < 2 * OutliersPerSide(vector.count); ++i) {
      const auto index = in->Get(IndexBits(vector.count));
      const float value = GetBf16(in);
      possible = possible && index < std::uint32_t(vector.count);
      if (!possible) continue;
      const std::size_t at = vector.At(int(index));
      outlier[at] = true;
      rows[at] = value;
    }
  });
  if (!possible) return false;
  Codebook book;
  book.count = 1 << bits_;
  for (int i = 0; i < book.count; ++i) book.levels[i] = GetF16(in);
  range = ranges;
  ForEachVector(dims.address.kind, tokens, channels, [&](const Strided& vector) {
    for (int i = 0; i < vector.count; ++i) {
      const std::size_t at = vector.At(i);
      if (!outlier[at]) rows[at] = range->low + book.levels[in->Get(bits_)] * range->width;
    }
    ++range;
  });
  if (const RopeTable* rope = ropes_.Of(dims.address)) {
    for (std::size_t head = 0; head < elements / std::size_t(head_dim); ++head) {
      rope->Rotate(rows + head * std::size_t(head_dim), sinks + int(head) / dims.address.head_count);
    }
  }
  return true;
}

}  // namespace lynx
