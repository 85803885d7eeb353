// Codecs on a GPU: pages in device memory <-> caches in blocks. Plain C++; pointers named `device` and what structs of
// paged_cache.h point to is device memory, a stream is a cudaStream_t (null: the default one). Calls that take a stream
// only start work on it.
//
// Built where CMake finds nvcc (LYNX_CUDA); CPU and GPU give the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "codec/page_codec.h"
#include "codec/paged_cache.h"
#include "lynx/result.h"

namespace lynx {

// Ok when a GPU can be used; else kUnsupported with what the driver says.
Status CudaReady();
// Waits for a stream; kEngine when something on it failed.
Status CudaWait(void* stream);

// Device memory, aligned to 256 bytes. Copies wait until they are done.
class CudaBuffer {
 public:
  CudaBuffer() = default;
  static Result<CudaBuffer> Make(std::size_t bytes);
  static Result<CudaBuffer> Of(std::span<const std::byte> bytes);

  std::byte* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  // From the beginning on; kInvalid when it does not fit.
  Status CopyIn(std::span<const std::byte> from);
  Status CopyOut(std::span<std::byte> to) const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

// Pages of one layer and kind that are done together; none has more tokens, heads or channels than `greatest`.
template <typename Page>
struct CudaPages {
  const Page* device = nullptr;
  int count = 0;  // at most 65535
  int layer = 0;
  PageShape greatest;
};

// What decoding needs besides; only `lynx` uses it.
struct CudaWork {
  std::byte* device = nullptr;  // count * DecodeWorkBytes(greatest)
  std::uint32_t* ok = nullptr;  // per page 1, or 0 when it is corrupt: then nothing of it was written
};

// A codec with its tables on the GPU. Immutable and thread-safe.
class CudaCodec {
 public:
  // The codecs `nested`, `paper`, `paper127` and `lynx`; kUnsupported for others and without a GPU. The profile as for
  // MakeCodec.
  static Result<std::unique_ptr<CudaCodec>> Make(std::string_view spec, const CacheShape& shape,
                                                 const Profile* profile = nullptr);

  const PageCodec& codec() const { return *codec_; }

  // The page for Decode of streams that lie on the host, for checking, and, whole, in device memory. Headers, checksums
  // and lengths are checked, and payloads but for `lynx`, whose kernel does that. Scratch as for Codec::Decode.
  // kUnsupported when the exact stream of `lynx` is among them.
  Result<DevicePage> Open(std::span<const std::span<const std::byte>> streams,
                          std::span<const std::byte* const> device_streams, const PageAddress& address,
                          std::span<std::byte> scratch) const;
  // Per page, a multiple of 16; 0 but for `lynx`.
  std::size_t DecodeWorkBytes(const PageShape& greatest) const;
  Status Decode(const CudaPages<DevicePage>& pages, const PagedCache& cache, const CudaWork& work, void* stream) const;

  // The page for Encode, whose pointers the caller sets: to codec().MaxBytes of device memory per payload, to an
  // *exact that is 0, and for `lynx` to *anchor_bytes. tokens_after as in BasicPage.
  Result<DeviceTarget> Target(const PageAddress& address, int tokens_after) const;
  // Payload bytes that Encode gives a stream of this page; of stream 0 of `lynx` the most, *anchor_bytes tells.
  std::size_t EncodedBytes(const PageDims& dims, int stream) const;
  // Per page, a multiple of 16; 0 but for `lynx`.
  std::size_t EncodeWorkBytes(const PageShape& greatest) const;
  // Pages with *exact set are the caller's to encode with codec(); the others become streams by PageCodec::Seal. work:
  // count * EncodeWorkBytes(greatest) of device memory. kUnsupported for caches of other types than BF16, and for
  // `lynx` with exact=1, whose exact stream only the host writes.
  Status Encode(const CudaPages<DeviceTarget>& pages, const PagedCache& cache, std::byte* work, void* stream) const;

 private:
  enum class Kind { kNested, kPaper, kLynx };
  CudaCodec() = default;
  Status MakeTables();
  Status MakeRope(const RopeTable& rope);
  const RopeTable* RopeOf(const PageAddress& address) const;
  RopeView ViewOf(int layer, KvKind kind) const;
  template <typename Page>
  Status CheckPages(const CudaPages<Page>& pages) const;

  Kind kind_ = Kind::kNested;
  CacheShape shape_;
  std::unique_ptr<Codec> owner_;
  const PageCodec* codec_ = nullptr;
  CudaBuffer tables_;                             // PaperLevels or LynxKernelTables
  CudaBuffer profile_steps_;                      // LynxCodec::ProfileSteps
  std::map<const RopeTable*, CudaBuffer> ropes_;  // cosines, then sines
};

}  // namespace lynx
