#include "codec/integer_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "codec/elements.h"
#include "codec/page_io.h"
#include "codec/page_parts.h"

namespace lynx {
namespace {

// Payload: steps (FP16) [token][group], then the codes: bytes [token][channel] for int8, nibble rows for int4.
CodecInfo Info(int bits, const std::string& spec) {
  CodecInfo info;
  info.name = bits == 8 ? "int8" : "int4";
  info.spec = spec;
  info.couples_heads = true;  // groups are counted from the page's first channel
  return info;
}

// One token in groups: the kernels know only one step per token. Plain loops: groups are for comparison.

void GroupMagnitudes(const float* row, int channels, int group, float* magnitudes) {
  for (int first = 0; first < channels; first += group) {
    float greatest = 0.0f;
    for (int c = first; c < std::min(first + group, channels); ++c) greatest = std::max(greatest, std::fabs(row[c]));
    *magnitudes++ = greatest;
  }
}

void GroupQuantize(const float* row, int channels, int group, const float* inverse_steps, int token, int bits,
                   std::byte* codes) {
  for (int c = 0; c < channels; ++c) {
    const int code = NearestInteger(row[c] * inverse_steps[c / group]);
    PutRow(codes, channels, bits, token, c, code & ((1 << bits) - 1));
  }
}

void GroupReconstruct(const std::byte* codes, int channels, int group, const float* steps, int token, int bits,
                      float* row) {
  for (int c = 0; c < channels; ++c) {
    const int code = GetRow(codes, channels, bits, token, c);
    row[c] = float(bits == 8 ? std::int8_t(code) : SignedNibble(code)) * steps[c / group];
  }
}

}  // namespace

IntegerCodec::IntegerCodec(const CacheShape& shape, const CodecKernels& kernels, int bits, int group,
                           const std::string& spec)
    : PageCodec(Info(bits, spec), bits == 8 ? CodecId::kInt8 : CodecId::kInt4, shape),
      kernels_(kernels),
      bits_(bits),
      group_(group) {
  LYNX_CHECK(bits == 8 || bits == 4);
}

std::size_t IntegerCodec::GroupsOf(const PageDims& dims) const {
  return group_ == 0 ? 1 : std::size_t((dims.channels + group_ - 1) / group_);
}

std::size_t IntegerCodec::PayloadBytes(const PageDims& dims, int) const {
  return 2 * std::size_t(dims.tokens) * GroupsOf(dims) + RowBytes(dims.tokens, dims.channels, bits_);
}

std::size_t IntegerCodec::WorkBytes(const PageDims& dims) const {
  return Scratch::BytesFor<float>(std::size_t(dims.tokens) * GroupsOf(dims));
}

// Magnitudes become inverse steps.
void IntegerCodec::PutSteps(float* magnitudes, std::size_t count, std::byte* to) const {
  const float greatest_code = bits_ == 8 ? 127.0f : 7.0f;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t step = IntegerStepOf(magnitudes[i], greatest_code);
    StoreLittle(step, to + 2 * i);
    magnitudes[i] = InverseOf(F16ToFloat(step));
  }
}

void IntegerCodec::EncodeGroups(const float* values, const PageDims& dims, std::byte* payload, Scratch scratch) const {
  const int channels = dims.channels;
  const std::size_t groups = GroupsOf(dims), steps = std::size_t(dims.tokens) * groups;
  float* inverse_steps = scratch.Take<float>(steps);
  for (int token = 0; token < dims.tokens; ++token) {
    GroupMagnitudes(values + std::size_t(token) * channels, channels, group_, inverse_steps + token * groups);
  }
  PutSteps(inverse_steps, steps, payload);
  std::byte* codes = payload + 2 * steps;
  std::memset(codes, 0, RowBytes(dims.tokens, channels, bits_));
  for (int token = 0; token < dims.tokens; ++token) {
    GroupQuantize(values + std::size_t(token) * channels, channels, group_, inverse_steps + token * groups, token,
                  bits_, codes);
  }
}

bool IntegerCodec::EncodeRows(ConstRows rows, const PageDims& dims, std::span<std::byte* const> payloads,
                              std::span<std::size_t>, Scratch scratch) const {
  if (group_ > 0) {
    EncodeGroups(ValuesOf(rows), dims, payloads[0], scratch);
    return true;
  }
  float* inverse_steps = scratch.Take<float>(dims.tokens);
  kernels_.token_magnitudes(rows, dims.tokens, dims.channels, inverse_steps);
  if (!AllWithin(inverse_steps, std::size_t(dims.tokens), kMaxMagnitude)) return false;
  PutSteps(inverse_steps, std::size_t(dims.tokens), payloads[0]);
  kernels_.integer_quantize(rows, dims.tokens, dims.channels, bits_, inverse_steps, payloads[0] + 2 * dims.tokens);
  return true;
}

Status IntegerCodec::CheckPayloads(Payloads payloads, const PageDims& dims, Scratch) const {
  return AllF16Finite(payloads[0].data(), dims.tokens * int(GroupsOf(dims)))
             ? Ok()
             : Corrupt("page stream has a step that is not finite");
}

void IntegerCodec::DecodeRows(Payloads payloads, const PageDims& dims, int chunk, Rows rows, Scratch scratch) const {
  const int tokens = dims.ChunkTokens(chunk);
  const std::size_t groups = GroupsOf(dims), first = std::size_t(chunk) * kChunkTokens;
  float* steps = scratch.Take<float>(std::size_t(tokens) * groups);
  const std::byte* from = payloads[0].data();
  for (std::size_t i = 0; i < std::size_t(tokens) * groups; ++i) steps[i] = LoadF16(from + 2 * (first * groups + i));
  const std::byte* codes = from + 2 * std::size_t(dims.tokens) * groups + RowBytes(int(first), dims.channels, bits_);
  if (group_ == 0) return kernels_.integer_reconstruct(codes, tokens, dims.channels, bits_, steps, rows);
  for (int token = 0; token < tokens; ++token) {
    GroupReconstruct(codes, dims.channels, group_, steps + token * groups, token, bits_, ValuesOf(rows.From(token)));
  }
}

}  // namespace lynx
