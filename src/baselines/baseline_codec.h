// What all baselines share: a payload is a string of bits, written and read in one go by plain code.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "codec/bit_io.h"
#include "codec/page_codec.h"

namespace lynx {

class BaselineCodec : public PageCodec {
 public:
  BaselineCodec(const std::string& spec, CodecId id, const CacheShape& shape, int stream_count = 1);

 protected:
  // Scratch of Write and Read, as a sum of Scratch::BytesFor.
  virtual std::size_t PageWorkBytes(const PageDims&) const { return 0; }
  // values: [token][channel], finite. A page that would take more than 2 bytes per element in stream 0, or 1 in a later
  // one, travels exactly: what does not fit the writers is lost and noticed.
  virtual void Write(const float* values, const PageDims& dims, std::span<BitWriter> streams,
                     Scratch scratch) const = 0;
  // The inverse, from the streams at hand. False when the bits are impossible; readers that have run out give zeros.
  virtual bool Read(std::span<BitReader> streams, const PageDims& dims, float* values, Scratch scratch) const = 0;

 private:
  std::size_t PayloadBytes(const PageDims& dims, int stream) const final;
  bool PayloadsVary() const final { return true; }
  std::size_t WorkBytes(const PageDims& dims) const final;
  bool EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                  std::span<std::size_t> payload_bytes, Scratch scratch) const final;
  Status CheckPayloads(Payloads payloads, const PageDims& dims, Scratch scratch) const final;
  void DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const final;
};

}  // namespace lynx
