#include "eval/calibrate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/float16.h"
#include "base/status_macros.h"
#include "codec/lynx_profile.h"
#include "codec/lynx_tables.h"
#include "codec/rope_table.h"

namespace lynx {
namespace {

constexpr int kPage = 256;

// Sums over everything that was fed, per layer.
struct LayerSums {
  std::vector<double> query_squares;   // [KV head][key channel]
  std::vector<double> output_squares;  // [KV head][value channel]
  double residual_square = 0;
};

// Adds what one batch showed. Query heads that share a KV head lie side by side.
void Add(const LayerShape& dims, const LayerProbe& probe, int tokens, LayerSums* sums) {
  const int group = probe.query_heads / dims.kv_heads;
  sums->query_squares.resize(std::size_t(dims.kv_heads * dims.key_dim));
  sums->output_squares.assign(std::size_t(dims.kv_heads * dims.value_dim), 0.0);
  const float* query = probe.queries.data();
  for (int token = 0; token < tokens; ++token) {
    for (int head = 0; head < probe.query_heads; ++head, query += dims.key_dim) {
      double* row = sums->query_squares.data() + head / group * dims.key_dim;
      for (int c = 0; c < dims.key_dim; ++c) row[c] += double(query[c]) * query[c] / group;
    }
  }
  for (int head = 0; head < probe.query_heads; ++head) {
    for (int c = 0; c < dims.value_dim; ++c) {
      const double norm = probe.output_norms[std::size_t(head * dims.value_dim + c)];
      sums->output_squares[std::size_t(head / group * dims.value_dim + c)] += norm * norm / group;
    }
  }
  sums->residual_square += double(probe.residual_rms) * probe.residual_rms * tokens;
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

// The mean over pages of 64 log2 of the mean distance from the page's mean, per channel of a head.
void AddSpreads(const CacheBlock& block, int layer, KvKind kind, int head, std::vector<double>* octaves) {
  const LayerShape& dims = block.shape().layers[std::size_t(layer)];
  const int dim = dims.HeadDim(kind);
  const PageView page = block.Page({layer, kind, head, 1, block.first_token(), block.token_count()}).value();
  const bool turned = kind == KvKind::kKey && dims.rope.pairing != RopePairing::kNone;
  const RopeTable rope(turned ? dims.rope : RopeShape{}, page.address.token_count);
  std::vector<float> rows;
  for (int token = 0; token < page.address.token_count; ++token) {
    for (int c = 0; c < dim; ++c) rows.push_back(LoadElement(page.At(token, 0, c), page.element_type));
    rope.Unrotate(rows.data() + token * dim, token);
  }
  for (int c = 0; c < dim; ++c) {
    double sum = 0, spread = 0;
    for (std::size_t at = std::size_t(c); at < rows.size(); at += std::size_t(dim)) sum += rows[at];
    const double mean = sum / page.address.token_count;
    for (std::size_t at = std::size_t(c); at < rows.size(); at += std::size_t(dim))
      spread += std::fabs(rows[at] - mean);
    (*octaves)[std::size_t(head * dim + c)] += FineOctavesOf(float(spread / page.address.token_count));
  }
}

}  // namespace

Result<Profile> Calibrate(Engine* engine, std::span<const Token> tokens) {
  const CacheShape& shape = engine->info().shape;
  const int pages = int(tokens.size()) / kPage;
  if (pages < 2) return Invalid("calibration needs at least 512 tokens; about 2000 are better");
  LYNX_ASSIGN_OR_RETURN(const SequenceId sequence, engine->Open());
  std::vector<LayerSums> sums(shape.layers.size());
  std::vector<std::vector<double>> spreads(2 * shape.layers.size());
  Status status = Ok();
  for (int page = 0; page < pages && status.ok(); ++page) {
    const StepInput input{sequence, tokens.subspan(std::size_t(page) * kPage, kPage), Logits::kNone};
    std::vector<LayerProbe> probes;
    status = engine->Probe(input, &probes);
    CacheBlock block(shape, page * kPage, kPage);
    if (status.ok()) status = engine->ReadBlock(sequence, &block);
    if (!status.ok()) break;
    for (int layer = 0; layer < int(shape.layers.size()); ++layer) {
      const LayerShape& dims = shape.layers[std::size_t(layer)];
      Add(dims, probes[std::size_t(layer)], kPage, &sums[std::size_t(layer)]);
      if (page == 0) continue;  // sinks would be in its spreads
      for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        auto& octaves = spreads[2 * std::size_t(layer) + std::size_t(kind)];
        octaves.resize(std::size_t(dims.kv_heads * dims.HeadDim(kind)));
        for (int head = 0; head < dims.kv_heads && dims.HeadDim(kind) > 0; ++head) {
          AddSpreads(block, layer, kind, head, &octaves);
        }
      }
    }
  }
  engine->Close(sequence);
  if (!status.ok()) return status;

  LynxProfile profile(spreads.size());
  for (std::size_t layer = 0; layer < shape.layers.size(); ++layer) {
    const LayerShape& dims = shape.layers[layer];
    LayerSums& sum = sums[layer];
    const double count = double(pages) * kPage;
    for (int head = 0; head < dims.kv_heads; ++head)
      ShareByPairs(dims.rope, sum.query_squares.data() + head * dims.key_dim);
    for (int kind = 0; kind < 2; ++kind) {
      const auto& octaves = spreads[2 * layer + std::size_t(kind)];
      for (std::size_t c = 0; c < octaves.size(); ++c) {
        // Logits are q k / sqrt(key_dim).
        const double weight = kind == 0 ? std::sqrt(sum.query_squares[c] / count / dims.key_dim)
                                        : std::sqrt(sum.output_squares[c] / (sum.residual_square / count));
        profile[2 * layer + std::size_t(kind)].push_back(
            {std::int16_t(std::lround(octaves[c] / (pages - 1))), std::int16_t(FineOctavesOf(float(weight)))});
      }
    }
  }
  return WriteLynxProfile(profile, shape);
}

}  // namespace lynx
