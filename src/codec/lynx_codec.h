// `lynx`: uniform steps, one per head and page or, with a profile, per channel, chosen for a rate; levels entropy-coded
// against one static table set; K turned back from RoPE, the first tokens of the sequence exact, the residual of the
// prompt's last tokens beside the anchor. docs/codec.md §3.5.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "codec/lynx_kernels.h"
#include "codec/lynx_profile.h"
#include "codec/lynx_reference.h"
#include "codec/page_codec.h"
#include "codec/page_parts.h"
#include "codec/rope_table.h"

namespace lynx {

struct LynxParameters {
  double anchor_bits = 2.25;  // per element of stream 0, everything counted, on average over the prompt
  int streams = 2;
  bool unrope = true;
  int recent = 64;     // tokens at the end of the prompt whose residual travels in stream 0
  bool exact = false;  // one more stream makes the elements those that were encoded; BF16 caches only
};

class LynxCodec : public PageCodec {
 public:
  // The rope of every layer has passed CheckRope.
  // Without a profile (null) every page gets one step per head, chosen for its rate; with one, steps follow it and the
  // average over the model meets the rate.
  LynxCodec(const CacheShape& shape, const LynxKernels& kernels, const LynxParameters& parameters,
            const std::string& spec, const LynxProfile* profile);
  const LynxParameters& parameters() const { return parameters_; }
  const RopeTable* RopeOf(const PageAddress& address) const;  // null: not rotated
  int StreamBits() const;                                     // of the residual in each later stream
  bool IsExactStream(int stream) const { return stream == parameters_.streams; }  // the one that exact=1 adds
  // For a page of at least one coded token.
  LynxRate RateOf(const PageDims& dims) const;
  // What the steps of all rates point into; empty without a profile.
  std::span<const std::int16_t> ProfileSteps() const { return steps_; }

 protected:
  bool PayloadsVary() const override { return true; }
  std::size_t PayloadBytes(const PageDims& dims, int stream) const override;
  std::size_t ExpectedPayloadBytes(const PageDims& dims, int stream) const override;
  bool TakesBf16(const PageAddress&) const override { return true; }
  std::size_t WorkBytes(const PageDims& dims) const override;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const override;
  bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                  std::span<std::size_t> payload_bytes, Scratch scratch) const override;
  void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const override;

 private:
  double LeastSymbolBits() const;
  double SymbolBits(const PageDims& dims) const;
  Status CheckExact(Payloads payloads, const PageDims& dims, Scratch scratch) const;
  // What DecodeRows gives as F32, and that without the exact stream.
  void DecodeValues(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const;
  void DecodeCells(Payloads payloads, const PageDims& dims, int chunk, float* rows, Scratch scratch) const;

  const LynxKernels& kernels_;
  LynxParameters parameters_;
  RopeTables ropes_;
  // With a profile: delta (64 log2) per rate, ascending rates; steps for the last delta and the seven above it, from
  // where they go on an eighth of an octave greater, [delta][2 * layer + kind][head * head_dim + channel]; where those
  // of a layer and kind begin in the first delta's.
  static constexpr int kDeltaParts = 8;
  std::vector<int> deltas_;
  std::vector<std::int16_t> steps_;
  std::vector<std::size_t> row_begins_;
};

}  // namespace lynx
