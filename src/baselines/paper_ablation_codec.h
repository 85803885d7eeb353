// `paper-ablation`: Algorithm 1 of the paper with every stage switchable.
#pragma once

#include "baselines/baseline_codec.h"
#include "codec/paper_levels.h"

namespace lynx {

struct PaperStages {
  double alpha = 100;    // stage 3, companding; 0: uniform levels
  int full_scale = 120;  // level of magnitude 1; above 120 anchors need 5 bits
  bool page = true;      // stage 1, range per channel of the page
  int chunk = 32;        // stage 2, mean and range per channel and this many tokens; 0: none
  bool split = true;     // stage 4, anchor and residual; false: sign and level in one stream
  bool coded = false;    // arithmetic-coded anchors (or levels): what their codes would cost ideally
};

class PaperAblationCodec : public BaselineCodec {
 public:
  PaperAblationCodec(const std::string& spec, const CacheShape& shape, const PaperStages& stages);

 protected:
  std::size_t PageWorkBytes(const PageDims& dims) const override;
  void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams, Scratch scratch) const override;
  bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const override;

 private:
  // What stages 1 and 2 take off the values of a channel in a chunk: value = base + (mean + x * range) * scale.
  struct Frame {
    float base = 0, scale = 1, mean = 0, range = 1;
  };
  int ChunkTokens(const PageDims& dims) const;
  int Chunks(const PageDims& dims) const;
  // Frames [chunk][channel], written as they are found.
  void PutFrames(const float* values, const PageDims& dims, Frame* frames, BitWriter* out) const;
  void PutChunkFrame(const float* values, int tokens, std::size_t channels, Frame* frame, BitWriter* out) const;
  void GetFrames(const PageDims& dims, Frame* frames, BitReader* in) const;
  // Bits of what stream 0 has of an element, as a number from 0.
  int CodeBits() const;

  const PaperStages stages_;
  const PaperLevels levels_;
};

}  // namespace lynx
