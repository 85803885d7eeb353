#include "eval/page_trip.h"

#include <algorithm>
#include <chrono>

#include "base/status_macros.h"

namespace lynx {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> PageTrip::Encode(const CacheBlock& block, const PageAddress& address) {
  LYNX_ASSIGN_OR_RETURN(PageView page, block.Page(address));
  page.tokens_after = block.first_token() + block.token_count() - address.first_token - address.token_count;
  const PageShape dims = ShapeOf(block.shape(), address);
  scratch_.resize(std::max(scratch_.size(), codec_->ScratchBytes(dims)));
  outputs_.resize(std::size_t(codec_->info().stream_count));
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t k = 0; k < outputs_.size(); ++k) {
    outputs_[k].resize(std::max(outputs_[k].size(), codec_->MaxBytes(dims, int(k))));
    buffers.emplace_back(outputs_[k]);
  }
  std::vector<std::size_t> sizes(outputs_.size());
  const auto start = std::chrono::steady_clock::now();
  LYNX_RETURN_IF_ERROR(codec_->Encode(page, buffers, sizes, scratch_));
  encode_s_ += SecondsSince(start);
  std::vector<std::vector<std::byte>> streams;
  for (std::size_t k = 0; k < outputs_.size(); ++k) {
    streams.emplace_back(outputs_[k].begin(), outputs_[k].begin() + std::ptrdiff_t(sizes[k]));
  }
  return streams;
}

Status PageTrip::Decode(std::span<const std::vector<std::byte>> streams, const PageAddress& address,
                        CacheBlock* block) {
  LYNX_ASSIGN_OR_RETURN(const PageSpan page, block->Page(address));
  scratch_.resize(std::max(scratch_.size(), codec_->ScratchBytes(ShapeOf(block->shape(), address))));
  const std::vector<std::span<const std::byte>> prefix(streams.begin(), streams.end());
  const auto start = std::chrono::steady_clock::now();
  LYNX_RETURN_IF_ERROR(codec_->Decode(prefix, page, scratch_));
  decode_s_ += SecondsSince(start);
  return Ok();
}

}  // namespace lynx
