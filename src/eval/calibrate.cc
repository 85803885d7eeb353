#include "eval/calibrate.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/status_macros.h"
#include "codec/lynx_codec.h"
#include "codec/lynx_profile.h"
#include "codec/lynx_tables.h"
#include "codec/page_parts.h"
#include "codec/rope_table.h"
#include "eval/attention.h"

namespace lynx {
namespace {

// One query in so many, of the second half of the text, tells what attention does with an error: 64 of 2,048 tokens.
constexpr int kQueryStride = 16;
// Tokens at the end by default travel with all bits: their errors are a 256th of the others' while drafts are made, and
// as great as the others' in the end. They count in between. (Sinks have none.)
constexpr int kRecent = LynxParameters{}.recent;
constexpr double kRecentShare = 1.0 / 16;

// What feeding the text showed of one layer.
struct LayerRecord {
  int query_heads = 0;
  std::vector<float> queries;  // [query][query head][key_dim] of the tokens at `positions`
  std::vector<int> positions;
  std::vector<float> output_norms;  // [query head][value_dim]
  double residual_square = 0;       // sum over pages
};

// Keeps what is needed of one page. The first page's residual stream is not typical: its first tokens are far too loud.
void Keep(const LayerShape& dims, const LayerProbe& probe, int page, int pages, LayerRecord* record) {
  record->query_heads = probe.query_heads;
  record->output_norms = probe.output_norms;
  if (page > 0) record->residual_square += double(probe.residual_rms) * probe.residual_rms;
  const auto row = std::ptrdiff_t(probe.query_heads) * dims.key_dim;
  for (int token = kQueryStride - 1; token < kPageTokens; token += kQueryStride) {
    const int position = page * kPageTokens + token;
    if (position < pages * kPageTokens / 2) continue;
    const auto first = probe.queries.begin() + token * row;
    record->queries.insert(record->queries.end(), first, first + row);
    record->positions.push_back(position);
  }
}

// Squares of weights, [KV head][channel].
struct LayerWeights {
  std::vector<double> key, value;
};

// How much an error in one token's K (times the query) and V reaches the output projection's input when it does so for
// every token independently. Attention averages V, so such errors add up like the squares a^2 of its weights; an error
// dl of a logit moves the output by a (v - o) dl, o being the output.
struct Reach {
  double key = 0;    // sum of a^2 |v - o|^2, as the output projection sees it
  double value = 0;  // sum of a^2
};
Reach ReachOf(const LayerAttention& attention, std::span<const float> query, int kv_head,
              std::span<const float> output_norms, int tokens) {
  std::vector<float> weights(static_cast<std::size_t>(tokens)), output(output_norms.size());
  attention.Weigh(query, kv_head, weights);
  if (!output.empty()) attention.Mix(weights, kv_head, output);
  Reach reach;
  for (int token = kSinks; token < tokens; ++token) {
    const double share = token < tokens - kRecent ? 1.0 : kRecentShare;
    const double square = share * double(weights[std::size_t(token)]) * weights[std::size_t(token)];
    double distance = output.empty() ? 1 : 0;  // a layer without V: nothing is known of its values
    for (std::size_t c = 0; c < output.size(); ++c) {
      const double part = double(output_norms[c]) * (attention.Value(token, kv_head)[c] - output[c]);
      distance += part * part;
    }
    reach.key += square * distance;
    reach.value += square;
  }
  return reach;
}

// Means over queries and over the query heads of a KV head, relative to the residual stream.
LayerWeights WeightsOf(const LayerShape& dims, const LayerAttention& attention, const LayerRecord& record,
                       int residual_pages) {
  LayerWeights weights{std::vector<double>(std::size_t(dims.kv_heads * dims.key_dim)),
                       std::vector<double>(std::size_t(dims.kv_heads * dims.value_dim))};
  const auto key_dim = std::size_t(dims.key_dim), value_dim = std::size_t(dims.value_dim);
  const int group = record.query_heads / dims.kv_heads;
  const double residual = record.residual_square > 0 && value_dim > 0 ? record.residual_square / residual_pages : 1.0;
  const double share = 1.0 / (residual * group * double(record.positions.size()));
  for (std::size_t i = 0; i < record.positions.size() * std::size_t(record.query_heads); ++i) {
    const std::size_t head = i % std::size_t(record.query_heads), kv_head = head / std::size_t(group);
    const auto query = std::span(record.queries).subspan(i * key_dim, key_dim);
    const auto norms = std::span(record.output_norms).subspan(head * value_dim, value_dim);
    const Reach reach =
        ReachOf(attention, query, int(kv_head), norms, record.positions[i / std::size_t(record.query_heads)] + 1);
    for (std::size_t c = 0; c < key_dim; ++c) {  // logits are q k / sqrt(key_dim)
      weights.key[kv_head * key_dim + c] += share * reach.key * double(query[c]) * query[c] / double(key_dim);
    }
    for (std::size_t c = 0; c < value_dim; ++c) {
      weights.value[kv_head * value_dim + c] += share * reach.value * double(norms[c]) * norms[c];
    }
  }
  return weights;
}

// Both channels of a RoPE pair meet the same energy.
void ShareByPairs(const RopeShape& rope, double* squares) {
  if (rope.pairing == RopePairing::kNone) return;
  const int count = rope.dims / 2;
  for (int pair = 0; pair < count; ++pair) {
    const bool norm = rope.pairing == RopePairing::kNorm;
    const int first = rope.offset + (norm ? 2 * pair : pair), second = first + (norm ? 1 : count);
    squares[first] = squares[second] = (squares[first] + squares[second]) / 2;
  }
}

// Per channel of a layer the mean over pages of 64 log2 of the mean distance from the page's mean. The first page is
// left out: sinks would be in its spreads.
std::vector<double> SpreadsOf(const CacheBlock& block, int layer, KvKind kind) {
  const LayerShape& dims = block.shape().layers[std::size_t(layer)];
  const int dim = dims.HeadDim(kind), pages = block.token_count() / kPageTokens;
  std::vector<double> octaves(std::size_t(dims.kv_heads * dim));
  const bool turned = kind == KvKind::kKey && dims.rope.pairing != RopePairing::kNone;
  const RopeTable rope(turned ? dims.rope : RopeShape{}, kPageTokens);
  std::vector<float> rows(std::size_t(kPageTokens * dim));
  for (int at = dims.kv_heads; at < pages * dims.kv_heads && dim > 0; ++at) {
    const int head = at % dims.kv_heads;
    const PageView page = block.Page({layer, kind, head, 1, at / dims.kv_heads * kPageTokens, kPageTokens}).value();
    for (int token = 0; token < kPageTokens; ++token) {
      float* row = rows.data() + token * dim;
      for (int c = 0; c < dim; ++c) row[c] = LoadElement(page.At(token, 0, c), page.element_type);
      rope.Unrotate(row, token);
    }
    for (int c = 0; c < dim; ++c) {
      double sum = 0, spread = 0;
      for (int token = 0; token < kPageTokens; ++token) sum += rows[std::size_t(token * dim + c)];
      for (int token = 0; token < kPageTokens; ++token) {
        spread += std::fabs(rows[std::size_t(token * dim + c)] - sum / kPageTokens);
      }
      octaves[std::size_t(head * dim + c)] += FineOctavesOf(float(spread / kPageTokens)) / double(pages - 1);
    }
  }
  return octaves;
}

struct OpenSequence {
  Engine* engine;
  SequenceId sequence;
  ~OpenSequence() { engine->Close(sequence); }
};

// Feeds whole pages and reads the cache that they leave.
Status Feed(Engine* engine, SequenceId sequence, std::span<const Token> tokens, const CalibrateProgress& progress,
            CacheBlock* block, std::vector<LayerRecord>* records) {
  const int pages = block->token_count() / kPageTokens;
  std::vector<LayerProbe> probes;
  for (int page = 0; page < pages; ++page) {
    if (progress) LYNX_RETURN_IF_ERROR(progress("reading page", page, pages));
    const StepInput input{sequence, tokens.subspan(std::size_t(page) * kPageTokens, kPageTokens), Logits::kNone};
    LYNX_RETURN_IF_ERROR(engine->Probe(input, &probes));
    for (std::size_t layer = 0; layer < records->size(); ++layer) {
      Keep(block->shape().layers[layer], probes[layer], page, pages, &(*records)[layer]);
    }
  }
  return engine->ReadBlock(sequence, block);
}

std::vector<LynxChannelProfile> Channels(const std::vector<double>& spreads, const std::vector<double>& squares) {
  std::vector<LynxChannelProfile> channels;
  for (std::size_t c = 0; c < spreads.size(); ++c) {
    channels.push_back(
        {std::int16_t(std::lround(spreads[c])), std::int16_t(FineOctavesOf(float(std::sqrt(squares[c]))))});
  }
  return channels;
}

}  // namespace

Result<Profile> Calibrate(Engine* engine, std::span<const Token> tokens, const CalibrateOptions& options) {
  const CacheShape& shape = engine->info().shape;
  const int next = options.measure ? kCalibrateNextTokens : 0;
  const int pages = (int(tokens.size()) - next) / kPageTokens;
  if (pages < 2) {
    return Invalid("calibration needs at least " + std::to_string(2 * kPageTokens + next) +
                   " tokens; about 2000 are better");
  }
  CacheBlock block(shape, 0, pages * kPageTokens);
  std::vector<LayerRecord> records(shape.layers.size());
  LYNX_ASSIGN_OR_RETURN(const SequenceId sequence, engine->Open());
  const OpenSequence closes{engine, sequence};
  LYNX_RETURN_IF_ERROR(Feed(engine, sequence, tokens, options.progress, &block, &records));

  LynxProfile profile;
  for (int layer = 0; layer < int(shape.layers.size()); ++layer) {
    const LayerShape& dims = shape.layers[std::size_t(layer)];
    LayerWeights weights = WeightsOf(dims, LayerAttention(block, layer), records[std::size_t(layer)], pages - 1);
    for (int head = 0; head < dims.kv_heads; ++head) ShareByPairs(dims.rope, weights.key.data() + head * dims.key_dim);
    profile.push_back(Channels(SpreadsOf(block, layer, KvKind::kKey), weights.key));
    profile.push_back(Channels(SpreadsOf(block, layer, KvKind::kValue), weights.value));
  }
  if (options.measure) {
    const auto following = tokens.subspan(std::size_t(pages) * kPageTokens, std::size_t(next));
    LYNX_ASSIGN_OR_RETURN(const std::vector<double> octaves,
                          MeasureSensitivity(engine, sequence, block, following, profile, options.progress));
    for (std::size_t part = 0; part < profile.size(); ++part) {
      for (LynxChannelProfile& channel : profile[part]) channel.weight += std::int16_t(std::lround(64 * octaves[part]));
    }
  }
  return WriteLynxProfile(profile, shape);
}

}  // namespace lynx
