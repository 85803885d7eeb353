// `paper` and `paper127`: Algorithm 1 of the paper (arXiv 2607.01831) in all four stages, two streams.
#pragma once

#include <string>

#include "codec/page_codec.h"
#include "codec/paper_levels.h"
#include "codec/paper_payload.h"

namespace lynx {

class PaperCodec : public PageCodec {
 public:
  PaperCodec(const CacheShape& shape, PaperReading reading, double alpha, const std::string& spec);
  PaperReading reading() const { return reading_; }
  const PaperLevels& levels() const { return levels_; }

 protected:
  std::size_t PayloadBytes(const PageDims& dims, int stream) const override;
  std::size_t WorkBytes(const PageDims& dims) const override;
  bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                  std::span<std::size_t> payload_bytes, Scratch scratch) const override;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const override;
  void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const override;

 private:
  const PaperReading reading_;
  const PaperLevels levels_;
};

}  // namespace lynx
