#include "eval/quality.h"

#include <algorithm>

#include "base/float16.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "eval/attention.h"
#include "eval/divergence.h"
#include "eval/page_trip.h"
#include "lynx/speculate.h"

namespace lynx {
namespace {

constexpr double kFlippedShare = 1e-5;

Token Greedy(std::span<const float> row) { return SampleCoupled(row, SamplingOptions{}, 0); }

// All streams of all pages.
struct EncodedCache {
  std::vector<PageAddress> pages;
  std::vector<std::vector<std::vector<std::byte>>> streams;  // [page][stream]
};

Result<EncodedCache> EncodeCache(const CacheBlock& block, const CodecInfo& info, PageTrip* trip) {
  EncodedCache cache;
  cache.pages = PagesOf(block.shape(), 0, block.token_count(), info.page_tokens, info.heads_per_page);
  for (const PageAddress& address : cache.pages) {
    LYNX_ASSIGN_OR_RETURN(auto streams, trip->Encode(block, address));
    cache.streams.push_back(std::move(streams));
  }
  return cache;
}

// The cache from the first `stream_count` streams.
Result<CacheBlock> DecodeCache(const CacheBlock& like, const EncodedCache& cache, int stream_count, PageTrip* trip) {
  CacheBlock block(like.shape(), like.first_token(), like.token_count());
  for (std::size_t i = 0; i < cache.pages.size(); ++i) {
    const auto prefix = std::span(cache.streams[i]).first(std::size_t(stream_count));
    LYNX_RETURN_IF_ERROR(trip->Decode(prefix, cache.pages[i], &block));
  }
  return block;
}

struct SquaredError {
  double error = 0;
  double energy = 0;
  void Add(double original, double other) {
    error += (original - other) * (original - other);
    energy += original * original;
  }
  void Add(const SquaredError& other) {
    error += other.error;
    energy += other.energy;
  }
  double Relative() const { return energy > 0 ? error / energy : 0; }
};

SquaredError CompareRows(const CacheBlock& original, const CacheBlock& other, int layer, KvKind kind) {
  const auto a = original.Rows(layer, kind);
  const auto b = other.Rows(layer, kind);
  const ElementType type = original.shape().element_type;
  SquaredError error;
  for (std::size_t i = 0; i < a.size(); i += std::size_t(ElementBytes(type))) {
    error.Add(LoadElement(&a[i], type), LoadElement(&b[i], type));
  }
  return error;
}

SquaredError CompareAttention(const QualityWindow& window, const CacheBlock& other, int layer, int rows) {
  const LayerProbe& probe = window.probes[std::size_t(layer)];
  const std::size_t row =
      std::size_t(probe.query_heads) * std::size_t(window.cache.shape().layers[std::size_t(layer)].key_dim);
  const auto queries = std::span(probe.queries).first(std::min(probe.queries.size(), row * std::size_t(rows)));
  const std::vector<float> a = Attend(window.cache, layer, queries, probe.query_heads);
  const std::vector<float> b = Attend(other, layer, queries, probe.query_heads);
  SquaredError error;
  for (std::size_t i = 0; i < a.size(); ++i) error.Add(a[i], b[i]);
  return error;
}

// The whole cache's error, and each layer's.
CacheError Compare(const QualityWindow& window, const CacheBlock& other, int attention_rows,
                   std::vector<CacheError>* layers) {
  SquaredError key, value, attention;
  for (int layer = 0; layer < int(other.shape().layers.size()); ++layer) {
    const SquaredError k = CompareRows(window.cache, other, layer, KvKind::kKey);
    const SquaredError v = CompareRows(window.cache, other, layer, KvKind::kValue);
    SquaredError a;
    if (attention_rows > 0 && !window.probes.empty() && other.shape().layers[std::size_t(layer)].value_dim > 0) {
      a = CompareAttention(window, other, layer, attention_rows);
    }
    key.Add(k);
    value.Add(v);
    attention.Add(a);
    layers->push_back({k.Relative(), v.Relative(), a.Relative()});
  }
  return {key.Relative(), value.Relative(), attention.Relative()};
}

}  // namespace

Result<std::vector<float>> TeacherForce(Engine* engine, SequenceId sequence, const CacheBlock& block,
                                        std::span<const Token> feed) {
  std::vector<float> logits;
  LYNX_RETURN_IF_ERROR(engine->Truncate(sequence, 0));
  LYNX_RETURN_IF_ERROR(engine->WriteBlock(sequence, block));
  const StepInput input{sequence, feed, Logits::kAll};
  LYNX_RETURN_IF_ERROR(engine->Step(std::span(&input, 1), &logits));
  return logits;
}

Result<QualityMeter> QualityMeter::Open(Engine* engine, const QualityOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const SequenceId sequence, engine->Open());
  return QualityMeter(engine, options, sequence);
}

Result<QualityWindow> QualityMeter::Capture(std::vector<Token> prompt) {
  const int count = int(prompt.size());
  QualityWindow window{std::move(prompt), CacheBlock(engine_->info().shape, 0, count), {}, {}, {}};
  LYNX_RETURN_IF_ERROR(engine_->Truncate(sequence_, 0));
  std::vector<float> row;
  for (int at = 0; at < count;) {
    const int end = std::min(count, at + engine_->info().prefill_batch);
    const StepInput input{sequence_, std::span(window.prompt).subspan(std::size_t(at), std::size_t(end - at)),
                          end == count ? Logits::kLast : Logits::kNone};
    LYNX_RETURN_IF_ERROR(engine_->Step(std::span(&input, 1), &row));
    at = end;
  }
  LYNX_RETURN_IF_ERROR(engine_->ReadBlock(sequence_, &window.cache));
  window.continuation.push_back(Greedy(row));
  for (int i = 0; i < options_.tokens; ++i) {
    const StepInput input{sequence_, std::span(&window.continuation.back(), 1), Logits::kLast};
    LYNX_RETURN_IF_ERROR(engine_->Step(std::span(&input, 1), &row));
    window.logits.insert(window.logits.end(), row.begin(), row.end());
    window.continuation.push_back(Greedy(row));
  }
  // Once more for the queries; the same rows, as batches don't change them.
  LYNX_RETURN_IF_ERROR(engine_->Truncate(sequence_, count));
  const StepInput fed{sequence_, std::span(window.continuation).first(std::size_t(options_.tokens)), Logits::kNone};
  const Status probed = engine_->Probe(fed, &window.probes);
  if (!probed.ok() && probed.code() != ErrorCode::kUnsupported) return probed;
  return window;
}

Result<std::vector<Token>> QualityMeter::Draft(const CacheBlock& block, Token token0, int count) {
  std::vector<Token> drafts;
  std::vector<float> row;
  LYNX_RETURN_IF_ERROR(engine_->Truncate(sequence_, 0));
  LYNX_RETURN_IF_ERROR(engine_->WriteBlock(sequence_, block));
  for (Token token = token0; int(drafts.size()) < count && !engine_->IsEndOfText(token); drafts.push_back(token)) {
    const StepInput input{sequence_, std::span(&token, 1), Logits::kLast};
    LYNX_RETURN_IF_ERROR(engine_->Step(std::span(&input, 1), &row));
    token = Greedy(row);
  }
  return drafts;
}

Status QualityMeter::MeasureDrafts(const QualityWindow& window, const CacheBlock& anchor, const CacheBlock& full,
                                   CodecQuality* quality) {
  const Token token0 = window.continuation.front();
  LYNX_ASSIGN_OR_RETURN(const std::vector<Token> drafts, Draft(anchor, token0, options_.drafts));
  quality->drafted = int(drafts.size());
  if (drafts.empty()) return Ok();
  std::vector<Token> feed{token0};
  feed.insert(feed.end(), drafts.begin(), drafts.end() - 1);
  LYNX_ASSIGN_OR_RETURN(const std::vector<float> rows, TeacherForce(engine_, sequence_, full, feed));
  const auto vocab = std::size_t(engine_->info().vocab_size);
  while (quality->accepted < quality->drafted &&
         Greedy(std::span(rows).subspan(std::size_t(quality->accepted) * vocab, vocab)) ==
             drafts[std::size_t(quality->accepted)]) {
    ++quality->accepted;
  }
  return Ok();
}

Result<CodecQuality> QualityMeter::Measure(const QualityWindow& window, const Codec& codec) {
  CodecQuality quality;
  quality.codec = codec.info().spec;
  quality.elements = engine_->info().shape.ElementsPerToken() * window.cache.token_count();
  const int streams = codec.info().stream_count;
  PageTrip trip(&codec);
  LYNX_ASSIGN_OR_RETURN(const EncodedCache encoded, EncodeCache(window.cache, codec.info(), &trip));
  quality.encode_s = trip.encode_s();
  quality.stream_bytes.resize(std::size_t(streams));
  for (const auto& page : encoded.streams) {
    for (int k = 0; k < streams; ++k) quality.stream_bytes[std::size_t(k)] += page[std::size_t(k)].size();
  }
  LYNX_ASSIGN_OR_RETURN(const CacheBlock full, DecodeCache(window.cache, encoded, streams, &trip));
  quality.decode_s = trip.decode_s();
  quality.full = Compare(window, full, options_.attention_rows, &quality.full_layers);
  const auto vocab = std::size_t(engine_->info().vocab_size);
  const auto feed = std::span(window.continuation).first(std::size_t(options_.tokens));
  LYNX_ASSIGN_OR_RETURN(const std::vector<float> full_rows, TeacherForce(engine_, sequence_, full, feed));
  quality.kl_full_bf16 = quality.kl_anchor_bf16 = MeanDivergence(window.logits, full_rows, vocab);
  quality.top1_full_bf16 = quality.top1_anchor_bf16 = TopAgreement(window.logits, full_rows, vocab);
  if (streams == 1) {  // the anchor is everything: whatever is drafted on it stands
    quality.anchor = quality.full;
    quality.anchor_layers = quality.full_layers;
    quality.drafted = quality.accepted = options_.drafts;
    return quality;
  }
  LYNX_ASSIGN_OR_RETURN(const CacheBlock anchor, DecodeCache(window.cache, encoded, 1, &trip));
  quality.anchor = Compare(window, anchor, options_.attention_rows, &quality.anchor_layers);
  LYNX_ASSIGN_OR_RETURN(const std::vector<float> anchor_rows, TeacherForce(engine_, sequence_, anchor, feed));
  quality.kl_anchor_full = MeanDivergence(full_rows, anchor_rows, vocab);
  quality.kl_anchor_bf16 = MeanDivergence(window.logits, anchor_rows, vocab);
  quality.top1_anchor_full = TopAgreement(full_rows, anchor_rows, vocab);
  quality.top1_anchor_bf16 = TopAgreement(window.logits, anchor_rows, vocab);
  LYNX_RETURN_IF_ERROR(MeasureDrafts(window, anchor, full, &quality));
  return quality;
}

Result<double> QualityMeter::NoiseFloor(const QualityWindow& window, std::uint64_t seed) {
  CacheBlock noisy = window.cache;
  Random random(seed);
  for (int layer = 0; layer < int(noisy.shape().layers.size()); ++layer) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const auto rows = noisy.Rows(layer, kind);
      const auto step = std::size_t(ElementBytes(noisy.shape().element_type));
      for (std::size_t i = 0; i < rows.size(); i += step) {
        if (random.Unit() < kFlippedShare) rows[i] ^= std::byte{1};
      }
    }
  }
  const auto feed = std::span(window.continuation).first(std::size_t(options_.tokens));
  LYNX_ASSIGN_OR_RETURN(const std::vector<float> rows, TeacherForce(engine_, sequence_, noisy, feed));
  return MeanDivergence(window.logits, rows, std::size_t(engine_->info().vocab_size));
}

}  // namespace lynx
