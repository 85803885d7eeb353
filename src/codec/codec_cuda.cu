#include "codec/codec_cuda.h"

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "codec/lynx_codec.h"
#include "codec/lynx_encode_warp.h"
#include "codec/lynx_warp.h"
#include "codec/nested_codec.h"
#include "codec/nested_thread.h"
#include "codec/paper_codec.h"
#include "codec/paper_thread.h"

namespace lynx {
namespace {

// One lane of a warp.
struct CudaWarp {
  template <class T>
  struct Lanes {
    T value;
    LYNX_KERNEL T& operator[](int) { return value; }
  };
  template <class F>
  LYNX_KERNEL void ForEach(F f) const {
    f(lane);
    Wait();
  }
  template <class F>
  LYNX_KERNEL std::uint32_t Ballot(F f) const {
    const bool in = f(lane);
#ifdef __CUDA_ARCH__
    return __ballot_sync(~0u, in);
#else
    return in ? 1 : 0;
#endif
  }
  LYNX_KERNEL void Wait() const {
#ifdef __CUDA_ARCH__
    __syncwarp();
#endif
  }
  int lane;
};

constexpr int kBlockThreads = 128;
constexpr int kBlockWarps = 4;

__device__ int ThreadOfRow() { return int(blockIdx.x * blockDim.x + threadIdx.x); }

// Pages x chunks x channels.
__global__ void NestedDecode(NestedDecodeJob job) {
  NestedDecodeThread(job, int(blockIdx.z), int(blockIdx.y), ThreadOfRow());
}
__global__ void PaperDecode(PaperDecodeJob job) {
  PaperDecodeThread(job, int(blockIdx.z), int(blockIdx.y), ThreadOfRow());
}
// Pages x channels.
__global__ void NestedEncode(NestedEncodeJob job) { NestedEncodeThread(job, int(blockIdx.y), ThreadOfRow()); }
__global__ void PaperEncode(PaperEncodeJob job) { PaperEncodeThread(job, int(blockIdx.y), ThreadOfRow()); }
// A row of 32 threads per page.
__global__ void LynxDecode(LynxDecodeJob job, int count) {
  const int page = int(blockIdx.x * kBlockWarps + threadIdx.y);
  if (page < count) LynxDecodeWarp(CudaWarp{int(threadIdx.x)}, job, page);
}
__global__ void LynxEncode(LynxEncodeJob job, int count) {
  const int page = int(blockIdx.x * kBlockWarps + threadIdx.y);
  if (page < count) LynxEncodeWarp(CudaWarp{int(threadIdx.x)}, job, page);
}

Status Failed(cudaError_t error) { return EngineError(std::string("CUDA: ") + cudaGetErrorString(error)); }
Status StatusOf(cudaError_t error) { return error == cudaSuccess ? Ok() : Failed(error); }

unsigned BlocksFor(const PageShape& shape) {
  return unsigned((shape.heads * shape.head_dim + kBlockThreads - 1) / kBlockThreads);
}

// Of warps, each a row of a block.
unsigned WarpBlocks(int pages) { return unsigned(pages + kBlockWarps - 1) / kBlockWarps; }

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

Status CudaReady() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return Unsupported(std::string("no GPU: ") + cudaGetErrorString(error));
  return devices > 0 ? Ok() : Unsupported("no GPU in this machine");
}

Status CudaWait(void* stream) { return StatusOf(cudaStreamSynchronize(static_cast<cudaStream_t>(stream))); }

void CudaBuffer::Free::operator()(std::byte* data) const { cudaFree(data); }

Result<CudaBuffer> CudaBuffer::Make(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    return LimitExceeded("no room for " + std::to_string(bytes) + " bytes on the GPU");
  }
  LYNX_RETURN_IF_ERROR(StatusOf(error));
  CudaBuffer buffer;
  buffer.data_.reset(static_cast<std::byte*>(data));
  buffer.bytes_ = bytes;
  return Result<CudaBuffer>(std::move(buffer));
}

Result<CudaBuffer> CudaBuffer::Of(std::span<const std::byte> bytes) {
  LYNX_ASSIGN_OR_RETURN(CudaBuffer buffer, Make(bytes.size()));
  LYNX_RETURN_IF_ERROR(buffer.CopyIn(bytes));
  return Result<CudaBuffer>(std::move(buffer));
}

Status CudaBuffer::CopyIn(std::span<const std::byte> from) {
  if (from.size() > bytes_) return Invalid("more bytes than the buffer on the GPU has");
  return StatusOf(cudaMemcpy(data(), from.data(), from.size(), cudaMemcpyHostToDevice));
}

Status CudaBuffer::CopyOut(std::span<std::byte> to) const {
  if (to.size() > bytes_) return Invalid("more bytes than the buffer on the GPU has");
  return StatusOf(cudaMemcpy(to.data(), data(), to.size(), cudaMemcpyDeviceToHost));
}

Result<std::unique_ptr<CudaCodec>> CudaCodec::Make(std::string_view spec, const CacheShape& shape,
                                                   const Profile* profile) {
  LYNX_RETURN_IF_ERROR(CudaReady());
  std::unique_ptr<CudaCodec> made(new CudaCodec);
  LYNX_ASSIGN_OR_RETURN(made->owner_, MakeCodec(spec, shape, profile));
  made->shape_ = shape;
  made->codec_ = dynamic_cast<const PageCodec*>(made->owner_.get());
  LYNX_RETURN_IF_ERROR(made->MakeTables());
  for (int layer = 0; layer < int(shape.layers.size()); ++layer) {
    const RopeTable* rope = made->RopeOf({layer, KvKind::kKey});
    if (rope != nullptr && !made->ropes_.contains(rope)) LYNX_RETURN_IF_ERROR(made->MakeRope(*rope));
  }
  return Result<std::unique_ptr<CudaCodec>>(std::move(made));
}

Status CudaCodec::MakeTables() {
  if (dynamic_cast<const NestedCodec*>(codec_) != nullptr) {
    kind_ = Kind::kNested;
    return Ok();
  }
  if (const auto* paper = dynamic_cast<const PaperCodec*>(codec_)) {
    kind_ = Kind::kPaper;
    LYNX_ASSIGN_OR_RETURN(tables_, CudaBuffer::Of(BytesOf(paper->levels())));
    return Ok();
  }
  if (const auto* lynx = dynamic_cast<const LynxCodec*>(codec_)) {
    kind_ = Kind::kLynx;
    LYNX_ASSIGN_OR_RETURN(tables_, CudaBuffer::Of(BytesOf(LynxKernelTables())));
    if (lynx->ProfileSteps().empty()) return Ok();
    LYNX_ASSIGN_OR_RETURN(profile_steps_, CudaBuffer::Of(std::as_bytes(lynx->ProfileSteps())));
    return Ok();
  }
  return Unsupported("no kernels for a GPU for " + owner_->info().name + ", there are nested, paper, paper127, lynx");
}

Status CudaCodec::MakeRope(const RopeTable& rope) {
  const std::size_t numbers = std::size_t(kPageTokens) * std::size_t(rope.pairs());
  std::vector<float> both(rope.cosines(0), rope.cosines(0) + numbers);
  both.insert(both.end(), rope.sines(0), rope.sines(0) + numbers);
  LYNX_ASSIGN_OR_RETURN(ropes_[&rope], CudaBuffer::Of(std::as_bytes(std::span(both))));
  return Ok();
}

const RopeTable* CudaCodec::RopeOf(const PageAddress& address) const {
  if (kind_ == Kind::kNested) return static_cast<const NestedCodec*>(codec_)->RopeOf(address);
  if (kind_ == Kind::kLynx) return static_cast<const LynxCodec*>(codec_)->RopeOf(address);
  return nullptr;
}

RopeView CudaCodec::ViewOf(int layer, KvKind kind) const {
  const RopeTable* rope = RopeOf({layer, kind});
  if (rope == nullptr) return {};
  const auto* cosines = reinterpret_cast<const float*>(ropes_.at(rope).data());
  return {cosines, cosines + std::size_t(kPageTokens) * std::size_t(rope->pairs()), rope->pairs(), rope->offset(),
          rope->adjacent()};
}

template <typename Page>
Status CudaCodec::CheckPages(const CudaPages<Page>& pages) const {
  constexpr int kMostPages = 65535;  // of a grid's second and third dimension
  if (pages.count < 0 || pages.count > kMostPages) return Invalid("at most 65535 pages at a time, please");
  if (pages.layer < 0 || std::size_t(pages.layer) >= shape_.layers.size()) return Invalid("no such layer");
  const PageShape& greatest = pages.greatest;
  if (greatest.tokens < 1 || greatest.tokens > kPageTokens || greatest.heads < 1 || greatest.head_dim < 1) {
    return Invalid("pages of 1 to 256 tokens and at least one channel, please");
  }
  return Ok();
}

Result<DevicePage> CudaCodec::Open(std::span<const std::span<const std::byte>> streams,
                                   std::span<const std::byte* const> device_streams, const PageAddress& address,
                                   std::span<std::byte> scratch) const {
  LYNX_RETURN_IF_ERROR(CheckAddress(shape_, address));
  if (streams.size() != device_streams.size()) return Invalid("one pointer per stream, please");
  PageSpan page;
  page.address = address;
  page.head_dim = shape_.layers[std::size_t(address.layer)].HeadDim(address.kind);
  OpenedPage opened;
  LYNX_RETURN_IF_ERROR(kind_ == Kind::kLynx ? codec_->Open(streams, page, &opened)
                                            : codec_->Check(streams, page, scratch, &opened));
  if (kind_ == Kind::kLynx && !opened.exact &&
      static_cast<const LynxCodec*>(codec_)->IsExactStream(int(streams.size()) - 1)) {
    return Unsupported("no kernels for a GPU for the exact stream of lynx; leave it out");
  }
  DevicePage device;
  device.dims = opened.dims;
  device.exact = opened.exact;
  device.streams = int(opened.streams);
  for (std::size_t stream = 0; stream < opened.streams; ++stream) {
    device.payloads[stream] = device_streams[stream] + kPageStreamHeaderBytes;
    device.bytes[stream] = opened.payloads[stream].size();
  }
  return device;
}

std::size_t CudaCodec::DecodeWorkBytes(const PageShape& greatest) const {
  return kind_ == Kind::kLynx ? LynxWorkBytes(greatest.tokens, greatest.heads * greatest.head_dim) : 0;
}

Status CudaCodec::Decode(const CudaPages<DevicePage>& pages, const PagedCache& cache, const CudaWork& work,
                         void* stream) const {
  LYNX_RETURN_IF_ERROR(CheckPages(pages));
  if (pages.count == 0) return Ok();
  const auto on = static_cast<cudaStream_t>(stream);
  const unsigned chunks = unsigned(pages.greatest.tokens + kChunkTokens - 1) / kChunkTokens;
  const dim3 grid(BlocksFor(pages.greatest), chunks, unsigned(pages.count));
  const RopeView rope = ViewOf(pages.layer, pages.greatest.kind);
  if (kind_ == Kind::kNested) {
    const int anchor_bits = static_cast<const NestedCodec*>(codec_)->parameters().anchor_bits;
    NestedDecode<<<grid, kBlockThreads, 0, on>>>({pages.device, cache, rope, anchor_bits});
  } else if (kind_ == Kind::kPaper) {
    const auto* levels = reinterpret_cast<const PaperLevels*>(tables_.data());
    const PaperReading reading = static_cast<const PaperCodec*>(codec_)->reading();
    PaperDecode<<<grid, kBlockThreads, 0, on>>>({pages.device, cache, levels, reading});
  } else {
    if (work.device == nullptr || work.ok == nullptr) return Invalid("lynx needs work memory on the GPU");
    const int stream_bits = static_cast<const LynxCodec*>(codec_)->StreamBits();
    const LynxDecodeJob job = {pages.device,
                               cache,
                               rope,
                               reinterpret_cast<const LynxKernelTables*>(tables_.data()),
                               stream_bits,
                               work.device,
                               DecodeWorkBytes(pages.greatest),
                               work.ok};
    LynxDecode<<<WarpBlocks(pages.count), dim3(kRansLanes, kBlockWarps), 0, on>>>(job, pages.count);
  }
  return StatusOf(cudaGetLastError());
}

Result<DeviceTarget> CudaCodec::Target(const PageAddress& address, int tokens_after) const {
  LYNX_RETURN_IF_ERROR(CheckAddress(shape_, address));
  if (address.token_count > kPageTokens) return Invalid("pages of 1 to 256 tokens, please");
  const int head_dim = shape_.layers[std::size_t(address.layer)].HeadDim(address.kind);
  DeviceTarget target;
  target.dims = {address.token_count, address.head_count * head_dim, address, shape_.element_type, tokens_after};
  if (kind_ == Kind::kLynx && PartsOf(target.dims).coded > 0) {
    const auto* lynx = static_cast<const LynxCodec*>(codec_);
    target.rate = lynx->RateOf(target.dims);
    if (target.rate.steps != nullptr) {
      const std::ptrdiff_t first = target.rate.steps - lynx->ProfileSteps().data();
      target.rate.steps = reinterpret_cast<const std::int16_t*>(profile_steps_.data()) + first;
    }
  }
  return target;
}

std::size_t CudaCodec::EncodedBytes(const PageDims& dims, int stream) const {
  if (kind_ == Kind::kPaper) return PaperPayloadBytes(static_cast<const PaperCodec*>(codec_)->reading(), dims, stream);
  Parts parts = PartsOf(dims);
  if (kind_ == Kind::kLynx) {
    const auto* lynx = static_cast<const LynxCodec*>(codec_);
    parts.recent = RecentOf(dims, parts.coded, lynx->parameters().recent);
    return stream == 0 ? kLynxMostBytes * dims.elements() : RowBytes(parts.plain(), dims.channels, lynx->StreamBits());
  }
  const NestedParameters& parameters = static_cast<const NestedCodec*>(codec_)->parameters();
  parts.recent = RecentOf(dims, parts.coded, parameters.recent);
  const NestedPlace end = NestedPlaceOf(dims, parts, parameters.anchor_bits, dims.chunks());
  return stream == 0 ? end.scales : end.plain_residual;
}

std::size_t CudaCodec::EncodeWorkBytes(const PageShape& greatest) const {
  return kind_ == Kind::kLynx ? LynxEncodeWorkBytes(greatest.tokens, greatest.heads * greatest.head_dim) : 0;
}

Status CudaCodec::Encode(const CudaPages<DeviceTarget>& pages, const PagedCache& cache, std::byte* work,
                         void* stream) const {
  LYNX_RETURN_IF_ERROR(CheckPages(pages));
  if (shape_.element_type != ElementType::kBf16) return Unsupported("encoding on a GPU takes caches in BF16");
  if (pages.count == 0) return Ok();
  const auto on = static_cast<cudaStream_t>(stream);
  const dim3 grid(BlocksFor(pages.greatest), unsigned(pages.count));
  const RopeView rope = ViewOf(pages.layer, pages.greatest.kind);
  if (kind_ == Kind::kNested) {
    const NestedParameters& parameters = static_cast<const NestedCodec*>(codec_)->parameters();
    NestedEncode<<<grid, kBlockThreads, 0, on>>>(
        {pages.device, cache, rope, parameters.anchor_bits, parameters.recent});
  } else if (kind_ == Kind::kPaper) {
    const auto* levels = reinterpret_cast<const PaperLevels*>(tables_.data());
    const PaperReading reading = static_cast<const PaperCodec*>(codec_)->reading();
    PaperEncode<<<grid, kBlockThreads, 0, on>>>({pages.device, cache, levels, reading});
  } else {
    const auto* lynx = static_cast<const LynxCodec*>(codec_);
    if (lynx->parameters().exact) return Unsupported("no encoder for a GPU for lynx with exact=1: encode on the CPU");
    if (work == nullptr) return Invalid("lynx needs work memory on the GPU");
    const auto* tables = reinterpret_cast<const LynxKernelTables*>(tables_.data());
    const LynxEncodeJob job = {pages.device,
                               cache,
                               rope,
                               tables,
                               lynx->StreamBits(),
                               lynx->parameters().recent,
                               work,
                               EncodeWorkBytes(pages.greatest)};
    LynxEncode<<<WarpBlocks(pages.count), dim3(kRansLanes, kBlockWarps), 0, on>>>(job, pages.count);
  }
  return StatusOf(cudaGetLastError());
}

}  // namespace lynx
