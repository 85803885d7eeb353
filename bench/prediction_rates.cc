#include "prediction_rates.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/status_macros.h"
#include "codec/bit_io.h"
#include "codec/catalog.h"
#include "codec/lynx_kernels.h"
#include "codec/lynx_reference.h"
#include "codec/page_parts.h"
#include "eval/page_trip.h"

namespace lynx {
namespace {

// What the encoder's slot `split` saw last.
std::vector<std::int32_t> watched;

void WatchSplit(std::int32_t* cells, int tokens, int channels, const LynxChannels& of, std::uint8_t* symbols,
                std::uint8_t* residuals) {
  SimdKernels().lynx->split(cells, tokens, channels, of, symbols, residuals);
  watched.assign(cells, cells + std::ptrdiff_t(tokens) * channels);
}

const CodecKernels& WatchedKernels() {
  static const LynxKernels lynx = [] {
    LynxKernels kernels = *SimdKernels().lynx;
    kernels.split = WatchSplit;
    return kernels;
  }();
  static const CodecKernels all = [] {
    CodecKernels kernels = SimdKernels();
    kernels.lynx = &lynx;
    return kernels;
  }();
  return all;
}

constexpr int kPhases = 4;  // a prediction lies -2, -1, 0 or 1 quarters of a level above the nearest level
constexpr int kCell = 16;   // residual cells of a level

// The density of docs/codec.md 3.5 at mean magnitude 1: the probability of [x, infinity), x >= 0.
double Tail(double x) { return 0.9 * 0.5 * std::erfc(x / std::sqrt(M_PI)) + 0.1 * 0.5 * std::exp(-x); }
// Of [low, high), from the side on which the difference is exact.
double Mass(double low, double high) {
  if (low >= 0) return Tail(low) - Tail(high);
  if (high <= 0) return Tail(-high) - Tail(-low);
  return 1 - Tail(-low) - Tail(high);
}
double Magnitude(int channel_class) { return std::exp2((channel_class - kLynxUnitClass) / 4.0); }

// As the codec makes its tables, but that zero lies `phase` levels beside symbol 8.
std::array<int, kLynxSymbols> Frequencies(int table, double phase) {
  constexpr int kTotal = 1 << kLynxProbabilityBits;
  const double magnitude = Magnitude(table);
  std::array<int, kLynxSymbols> frequencies;
  int left = kTotal;
  for (int symbol = 0; symbol < kLynxSymbols; ++symbol) {
    const double level = symbol - kLynxOutermost - phase;
    const double low = symbol == 0 ? -1e9 : level - 0.5, high = symbol == kLynxSymbols - 1 ? 1e9 : level + 0.5;
    frequencies[std::size_t(symbol)] = 1 + int(Mass(low / magnitude, high / magnitude) * (kTotal - kLynxSymbols));
    left -= frequencies[std::size_t(symbol)];
  }
  frequencies[kLynxOutermost] += left;
  return frequencies;
}

// Bits of symbols, for every class and phase. The codec's own tables where the phase is 0.
class SymbolBits {
 public:
  static const SymbolBits& Get() {
    static const SymbolBits bits;
    return bits;
  }
  double Of(int channel_class, int phase, std::int32_t level) const {
    const int shift = LynxShift(channel_class);
    const std::int32_t above = std::abs(LynxHighOf(level, shift)) - kLynxOutermost;
    return bits_[std::size_t(channel_class)][std::size_t(phase + 2)][LynxSymbolOf(level, shift)] + shift +
           (above >= 0 ? GolombBits(std::uint32_t(above), kLynxOpenOrder) : 0);
  }

 private:
  SymbolBits() {
    for (int k = 0; k < kLynxClasses; ++k) {
      for (int phase = -2; phase < 2; ++phase) {
        const auto made = Frequencies(LynxTableOf(k), phase / 4.0 / (1 << LynxShift(k)));
        for (int symbol = 0; symbol < kLynxSymbols; ++symbol) {
          const int frequency =
              phase == 0 ? LynxTables::Get()[LynxTableOf(k)].Frequency(symbol) : made[std::size_t(symbol)];
          bits_[std::size_t(k)][std::size_t(phase + 2)][std::size_t(symbol)] =
              kLynxProbabilityBits - std::log2(frequency);
        }
      }
    }
  }
  std::array<std::array<std::array<double, kLynxSymbols>, kPhases>, kLynxClasses> bits_;
};

// Bits of a residual, given the level, by the density around the prediction.
class ResidualBits {
 public:
  static const ResidualBits& Get() {
    static const ResidualBits bits;
    return bits;
  }
  // n of the element less 4 times the prediction in quarters; `level_begin` is the same of its level's first cell.
  double Of(int channel_class, std::int32_t cell, std::int32_t level_begin) const {
    const double level = MassOf(channel_class, level_begin, level_begin + kCell);
    const double within = MassOf(channel_class, cell, cell + 1);
    return level > 1e-200 && within > 1e-200 ? std::log2(level / within) : kLynxResidualBits;
  }

 private:
  static constexpr int kEdges = 8192;  // beyond 512 levels: as if all residuals were equally probable
  ResidualBits() : tails_(kLynxClasses * kEdges) {
    for (int k = 0; k < kLynxClasses; ++k) {
      for (int edge = 0; edge < kEdges; ++edge) {
        tails_[std::size_t(k * kEdges + edge)] = Tail(edge / double(kCell) / Magnitude(k));
      }
    }
  }
  double TailOf(int channel_class, std::int32_t edge) const {
    return edge < kEdges ? tails_[std::size_t(channel_class * kEdges + edge)] : 0;
  }
  // Of cells begin … end - 1, where cell 8 begins at the prediction.
  double MassOf(int channel_class, std::int32_t begin, std::int32_t end) const {
    const std::int32_t low = begin - kCell / 2, high = end - kCell / 2;
    if (low >= 0) return TailOf(channel_class, low) - TailOf(channel_class, high);
    if (high <= 0) return TailOf(channel_class, -high) - TailOf(channel_class, -low);
    return 1 - TailOf(channel_class, -low) - TailOf(channel_class, high);
  }
  std::vector<double> tails_;
};

// A prediction of q quarters makes of n a distance |2 n - 15 - 8 q| in 32nds of a step.
int ClassOf(const std::int32_t* nested, const std::int16_t* quarters, int tokens, std::size_t channels,
            std::size_t stride) {
  std::int64_t sum = 0;
  for (std::size_t t = 0; t < std::size_t(tokens); ++t) {
    sum += std::abs(2 * nested[t * channels] - 15 - 8 * (quarters != nullptr ? quarters[t * stride] : 0));
  }
  return LynxTables::Get().ClassOf(sum, tokens);
}

// One channel of a page.
RowBits ChannelBits(const std::int32_t* nested, const std::int16_t* quarters, int tokens, std::size_t channels,
                    std::size_t stride) {
  const int k = ClassOf(nested, quarters, tokens, channels, stride);
  RowBits bits;
  for (std::size_t t = 0; t < std::size_t(tokens); ++t) {
    const std::int32_t n = nested[t * channels], level = n >> kLynxResidualBits;
    const int predicted = quarters != nullptr ? quarters[t * stride] : 0;
    const int nearest = (predicted + 2) >> 2;
    bits.levels += SymbolBits::Get().Of(k, predicted - 4 * nearest, level - nearest);
    bits.residuals += ResidualBits::Get().Of(k, n - 4 * predicted, kCell * level - 4 * predicted);
  }
  return bits;
}

// Calls `each(first token of the page, its tokens, first channel of the head)`.
template <typename Each>
void ForPages(const QuantizedRows& rows, Each each) {
  int first = 0;
  for (const int tokens : rows.page_tokens) {
    for (int channel = 0; channel < rows.channels; channel += rows.head_dim) each(first, tokens, channel);
    first += tokens;
  }
}

// Upper triangle of A^T A, and A^T B behind it, of rows [A | B]; four rows at a time, since memory is what limits it.
class NormalEquations {
 public:
  NormalEquations(int inputs, int outputs)
      : inputs_(std::size_t(inputs)),
        width_(std::size_t(inputs + outputs)),
        sums_(inputs_ * width_),
        rows_(4 * width_) {}
  // The next row's [A | B]; call Flush behind the last one.
  double* Row() {
    if (count_ == 4) Flush();
    return rows_.data() + width_ * count_++;
  }
  void Flush() {
    std::fill(rows_.begin() + std::ptrdiff_t(width_ * count_), rows_.end(), 0.0);
    const double *a = rows_.data(), *b = a + width_, *c = b + width_, *d = c + width_;
    for (std::size_t i = 0; i < inputs_; ++i) {
      const double ai = a[i], bi = b[i], ci = c[i], di = d[i];
      if (ai == 0 && bi == 0 && ci == 0 && di == 0) continue;
      double* to = sums_.data() + i * width_;
      for (std::size_t j = i; j < width_; ++j) to[j] += (ai * a[j] + bi * b[j]) + (ci * c[j] + di * d[j]);
    }
    count_ = 0;
  }
  // (A^T A + ridge)^-1 A^T B by Cholesky: U^T U, then forward and backward over whole rows.
  std::vector<double> Solve(double relative_ridge) {
    const auto row = [this](std::size_t i) { return sums_.data() + i * width_; };
    double trace = 0;
    for (std::size_t i = 0; i < inputs_; ++i) trace += row(i)[i];
    for (std::size_t i = 0; i < inputs_; ++i) row(i)[i] += relative_ridge * trace / double(inputs_) + 1e-9;
    for (std::size_t i = 0; i < inputs_; ++i) {
      const double inverse = 1 / std::sqrt(row(i)[i]);
      for (std::size_t j = i; j < width_; ++j) row(i)[j] *= inverse;
      for (std::size_t below = i + 1; below < inputs_; ++below) Subtract(row(i)[below], row(i), row(below), below);
    }
    for (std::size_t i = inputs_; i-- > 0;) {
      const double inverse = 1 / row(i)[i];
      for (std::size_t j = inputs_; j < width_; ++j) row(i)[j] *= inverse;
      for (std::size_t above = 0; above < i; ++above) Subtract(row(above)[i], row(i), row(above), inputs_);
    }
    std::vector<double> weights;
    for (std::size_t i = 0; i < inputs_; ++i) weights.insert(weights.end(), row(i) + inputs_, row(i) + width_);
    return weights;
  }

 private:
  void Subtract(double times, const double* from, double* to, std::size_t first) const {
    for (std::size_t j = first; j < width_; ++j) to[j] -= times * from[j];
  }
  std::size_t inputs_, width_, count_ = 0;
  std::vector<double> sums_, rows_;
};

}  // namespace

Result<WatchedCodec> WatchedCodec::Make(const std::string& spec, const CacheShape& shape, const Profile* profile) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodecWith(WatchedKernels(), spec, shape, profile));
  return WatchedCodec(std::move(codec));
}

Result<QuantizedRows> WatchedCodec::Quantize(const CacheBlock& block, int layer, KvKind kind) const {
  const LayerShape& dims = block.shape().layers[std::size_t(layer)];
  QuantizedRows rows;
  rows.head_dim = dims.HeadDim(kind);
  rows.channels = dims.kv_heads * rows.head_dim;
  rows.nested.resize(std::size_t(block.token_count() - kSinks) * std::size_t(rows.channels));
  PageTrip trip(codec_.get());
  for (const PageAddress& address : PagesOf(block.shape(), 0, block.token_count(), codec_->info().page_tokens, 1)) {
    if (address.layer != layer || address.kind != kind) continue;
    watched.clear();
    LYNX_ASSIGN_OR_RETURN(const auto streams, trip.Encode(block, address));
    const bool exact = (streams[0][6] & std::byte{1}) != std::byte{0};
    if (exact) return Unsupported("a page of this cache travels exactly: it has no levels");
    rows.stream0_bytes += streams[0].size();
    const int tokens = int(watched.size()) / rows.head_dim;
    const int first = address.first_token + address.token_count - tokens - kSinks;
    if (address.first_head == 0) rows.page_tokens.push_back(tokens);
    for (int t = 0; t < tokens; ++t) {
      std::copy_n(watched.begin() + std::ptrdiff_t(t) * rows.head_dim, rows.head_dim,
                  rows.nested.begin() + std::ptrdiff_t(first + t) * rows.channels + address.first_head * rows.head_dim);
    }
  }
  return rows;
}

std::vector<std::int8_t> LevelsOf(const std::vector<const QuantizedRows*>& rows) {
  std::vector<std::int8_t> levels;
  for (int t = 0; !rows.empty() && t < rows.front()->tokens(); ++t) {
    for (const QuantizedRows* each : rows) {
      const std::int32_t* nested = each->nested.data() + std::ptrdiff_t(t) * each->channels;
      for (int c = 0; c < each->channels; ++c) {
        levels.push_back(std::int8_t(std::clamp(nested[c] >> kLynxResidualBits, -127, 127)));
      }
    }
  }
  return levels;
}

std::vector<double> FitWeights(const std::vector<std::vector<std::int8_t>>& inputs,
                               const std::vector<const QuantizedRows*>& targets) {
  // Of the inputs' mean square; 0.001, 0.01 and 0.1 take .015, .005 and .004 bits more at 2.25 bits (two windows, a
  // third text).
  constexpr double kRidge = 0.03;
  const int outputs = targets.front()->channels;
  const int count = int(inputs.front().size()) / targets.front()->tokens();
  NormalEquations equations(count, outputs);
  for (std::size_t window = 0; window < targets.size(); ++window) {
    const std::int8_t* levels = inputs[window].data();
    const std::int32_t* nested = targets[window]->nested.data();
    for (int t = 0; t < targets[window]->tokens(); ++t) {
      double* row = equations.Row();
      for (int i = 0; i < count; ++i) *row++ = *levels++;
      for (int i = 0; i < outputs; ++i) *row++ = (2 * *nested++ - 15) / 32.0;
    }
  }
  equations.Flush();
  return equations.Solve(kRidge);
}

RowBits BitsOf(const QuantizedRows& rows, const std::int16_t* quarters, int stride) {
  RowBits all;
  ForPages(rows, [&](int first, int tokens, int first_channel) {
    RowBits plain, predicted;
    for (int c = first_channel; c < first_channel + rows.head_dim; ++c) {
      const std::int32_t* nested = rows.nested.data() + std::ptrdiff_t(first) * rows.channels + c;
      const auto add = [&](RowBits* to, const std::int16_t* of) {
        const RowBits bits = ChannelBits(nested, of, tokens, std::size_t(rows.channels), std::size_t(stride));
        to->levels += bits.levels;
        to->residuals += bits.residuals;
      };
      add(&plain, nullptr);
      if (quarters != nullptr) add(&predicted, quarters + std::ptrdiff_t(first) * stride + c);
    }
    const RowBits& best = quarters != nullptr && predicted.levels < plain.levels ? predicted : plain;
    all.levels += best.levels + (quarters != nullptr ? 1 : 0);
    all.residuals += best.residuals;
  });
  return all;
}

void ResidualCounts::Add(const QuantizedRows& rows) {
  counts_.resize(kLynxClasses);
  ForPages(rows, [&](int first, int tokens, int first_channel) {
    for (int c = first_channel; c < first_channel + rows.head_dim; ++c) {
      const std::int32_t* nested = rows.nested.data() + std::ptrdiff_t(first) * rows.channels + c;
      const int k = ClassOf(nested, nullptr, tokens, std::size_t(rows.channels), 0);
      for (int t = 0; t < tokens; ++t, nested += rows.channels) {
        const int level = std::clamp(*nested >> kLynxResidualBits, -kLevels / 2, kLevels / 2) + kLevels / 2;
        ++counts_[std::size_t(k)][std::size_t(level)][std::size_t(*nested & 15)];
      }
    }
  });
}

double ResidualCounts::BitsPerElement() const {
  double bits = 0, elements = 0;
  for (const auto& of_class : counts_) {
    for (const auto& of_level : of_class) {
      double sum = 0;
      for (const std::int64_t count : of_level) sum += double(count);
      for (const std::int64_t count : of_level) bits -= count > 0 ? double(count) * std::log2(double(count) / sum) : 0;
      elements += sum;
    }
  }
  return elements > 0 ? bits / elements : 0;
}

bool TablesAgree() {
  for (int table = 0; table < kLynxTables; ++table) {
    const auto made = Frequencies(table, 0);
    for (int symbol = 0; symbol < kLynxSymbols; ++symbol) {
      if (made[std::size_t(symbol)] != LynxTables::Get()[table].Frequency(symbol)) return false;
    }
  }
  return true;
}

}  // namespace lynx
