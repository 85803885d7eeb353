#include "baselines/paper_ablation_codec.h"

#include <cmath>
#include <optional>

#include "baselines/numbers.h"
#include "baselines/range_coder.h"
#include "codec/paper_payload.h"

namespace lynx {
namespace {

constexpr int kLevelBits = 7;  // levels 0…127

}  // namespace

PaperAblationCodec::PaperAblationCodec(const std::string& spec, const CacheShape& shape, const PaperStages& stages)
    : BaselineCodec(spec, CodecId::kPaperAblation, shape, stages.split ? 2 : 1),
      stages_(stages),
      levels_(stages.alpha, stages.full_scale) {}

int PaperAblationCodec::ChunkTokens(const PageDims& dims) const {
  return stages_.chunk > 0 ? stages_.chunk : dims.tokens;
}
int PaperAblationCodec::Chunks(const PageDims& dims) const {
  return (dims.tokens + ChunkTokens(dims) - 1) / ChunkTokens(dims);
}
int PaperAblationCodec::CodeBits() const {
  if (!stages_.split) return kLevelBits + 1;
  return PaperCoarse(stages_.full_scale) > 7 ? 5 : 4;
}

std::size_t PaperAblationCodec::PageWorkBytes(const PageDims& dims) const {
  return Scratch::BytesFor<Frame>(std::size_t(Chunks(dims)) * std::size_t(dims.channels)) +
         AdaptiveModel::WorkBytes(dims.channels, 1 << CodeBits());
}

// mean: rounded to nearest; range: the greatest distance from it, rounded up.
void PaperAblationCodec::PutChunkFrame(const float* values, int tokens, std::size_t channels, Frame* frame,
                                       BitWriter* out) const {
  const auto normal = [&](int token) {
    return (values[std::size_t(token) * channels] - frame->base) / PaperDivisor(frame->scale);
  };
  float sum = 0.0f, greatest = 0.0f;
  for (int token = 0; token < tokens; ++token) sum += normal(token);
  frame->mean = PutF16(FloatToF16(sum / float(tokens)), out);
  for (int token = 0; token < tokens; ++token) greatest = std::max(greatest, std::fabs(normal(token) - frame->mean));
  frame->range = PutF16(F16Up(greatest), out);
}

// Stage 1: per channel least and range (FP16). Stage 2: per chunk and channel mean and range (FP16). Without stage 2,
// [-1, 1] is the page's range of the channel or, without stage 1 too, the page's greatest magnitude (FP16).
void PaperAblationCodec::PutFrames(const float* values, const PageDims& dims, Frame* frames, BitWriter* out) const {
  const auto channels = std::size_t(dims.channels);
  float page_range = 0.5f;
  if (!stages_.page && stages_.chunk == 0) {
    float greatest = 0.0f;
    for (std::size_t i = 0; i < dims.elements(); ++i) greatest = std::max(greatest, std::fabs(values[i]));
    page_range = PutF16(F16Up(greatest), out);
  }
  for (std::size_t c = 0; c < channels; ++c) {
    Frame frame;
    if (stages_.page) {
      float least = values[c], greatest = values[c];
      for (int token = 1; token < dims.tokens; ++token) {
        least = std::min(least, values[token * channels + c]);
        greatest = std::max(greatest, values[token * channels + c]);
      }
      frame.base = PutF16(F16Down(least + 0.0f), out);
      frame.scale = PutF16(F16Up(greatest + 0.0f - frame.base), out);
    }
    frame.mean = stages_.page ? 0.5f : 0.0f;
    frame.range = page_range;
    for (int chunk = 0; chunk < Chunks(dims); ++chunk) frames[chunk * channels + c] = frame;
  }
  if (stages_.chunk == 0) return;
  for (int chunk = 0; chunk < Chunks(dims); ++chunk) {
    const int first = chunk * ChunkTokens(dims);
    for (std::size_t c = 0; c < channels; ++c) {
      PutChunkFrame(values + first * channels + c, std::min(ChunkTokens(dims), dims.tokens - first), channels,
                    &frames[chunk * channels + c], out);
    }
  }
}

void PaperAblationCodec::GetFrames(const PageDims& dims, Frame* frames, BitReader* in) const {
  const auto channels = std::size_t(dims.channels);
  const float page_range = !stages_.page && stages_.chunk == 0 ? GetF16(in) : 0.5f;
  for (std::size_t c = 0; c < channels; ++c) {
    Frame frame;
    if (stages_.page) {
      frame.base = GetF16(in);
      frame.scale = GetF16(in);
    }
    frame.mean = stages_.page ? 0.5f : 0.0f;
    frame.range = page_range;
    for (int chunk = 0; chunk < Chunks(dims); ++chunk) frames[chunk * channels + c] = frame;
  }
  if (stages_.chunk == 0) return;
  for (std::size_t i = 0; i < Chunks(dims) * channels; ++i) {
    frames[i].mean = GetF16(in);
    frames[i].range = GetF16(in);
  }
}

// Frames, then codes [token][channel]: of anchors, or sign and level. Stream 1: residuals.
void PaperAblationCodec::Write(const float* values, const PageDims& dims, std::span<BitWriter> streams,
                               Scratch scratch) const {
  const auto channels = std::size_t(dims.channels);
  auto* frames = scratch.Take<Frame>(Chunks(dims) * channels);
  PutFrames(values, dims, frames, &streams[0]);
  AdaptiveModel model(dims.channels, 1 << CodeBits(), &scratch);
  RangeEncoder coder(&streams[0]);
  for (int token = 0; token < dims.tokens; ++token) {
    for (std::size_t c = 0; c < channels; ++c) {
      const Frame& frame = frames[token / ChunkTokens(dims) * channels + c];
      const float normal = (values[token * channels + c] - frame.base) / PaperDivisor(frame.scale);
      const float x = (normal - frame.mean) / PaperDivisor(frame.range);
      const int level = levels_.LevelOf(std::fabs(x));
      std::uint32_t code = std::uint32_t(level) | (x < 0.0f ? 1u << kLevelBits : 0u);
      if (stages_.split) {
        const int coarse = PaperCoarse(level);
        code = std::uint32_t(PaperAnchor(coarse, x < 0.0f)) & ((1u << CodeBits()) - 1u);
        streams[1].Put(std::uint32_t(PaperResidual(coarse, level)) & 15u, 4);
      }
      stages_.coded ? model.Put(int(c), int(code), &coder) : streams[0].Put(code, CodeBits());
    }
  }
  if (stages_.coded) coder.Finish();
}

bool PaperAblationCodec::Read(std::span<BitReader> streams, const PageDims& dims, float* values,
                              Scratch scratch) const {
  const auto channels = std::size_t(dims.channels);
  auto* frames = scratch.Take<Frame>(Chunks(dims) * channels);
  GetFrames(dims, frames, &streams[0]);
  AdaptiveModel model(dims.channels, 1 << CodeBits(), &scratch);
  std::optional<RangeDecoder> coder;
  if (stages_.coded) coder.emplace(&streams[0]);
  for (int token = 0; token < dims.tokens; ++token) {
    for (std::size_t c = 0; c < channels; ++c) {
      const int code = coder ? model.Get(int(c), &*coder) : int(streams[0].Get(CodeBits()));
      int level = code & 127;
      bool negative = code >> kLevelBits != 0;
      if (stages_.split) {
        const int sign = 1 << (CodeBits() - 1);
        const int anchor = (code ^ sign) - sign;
        negative = PaperIsNegative(anchor);
        level = PaperJoin(PaperCoarseOf(anchor), streams.size() > 1 ? SignedNibble(int(streams[1].Get(4))) : 0);
      }
      const Frame& frame = frames[token / ChunkTokens(dims) * channels + c];
      const float x = negative ? -levels_.ValueOf(level) : levels_.ValueOf(level);
      values[token * channels + c] = frame.base + (frame.mean + x * frame.range) * frame.scale;
    }
  }
  return true;
}

}  // namespace lynx
