// A project of its own that uses the installed library: one page through the nested codec and back.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "lynx/codec.h"
#include "lynx/page.h"
#include "lynx/version.h"

namespace {

constexpr int kTokens = 256;
constexpr int kHeads = 2;
constexpr int kHeadDim = 64;

float AsFloat(std::uint16_t bf16) {
  const std::uint32_t bits = std::uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::uint16_t AsBf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

int Fail(const char* what, const lynx::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.ToString().c_str());
  return 1;
}

// The largest difference between two blocks of BF16 rows.
float MaxError(std::span<const std::byte> a, std::span<const std::byte> b) {
  float error = 0;
  for (std::size_t i = 0; i + 1 < a.size(); i += 2) {
    std::uint16_t x, y;
    std::memcpy(&x, &a[i], 2);
    std::memcpy(&y, &b[i], 2);
    error = std::max(error, std::abs(AsFloat(x) - AsFloat(y)));
  }
  return error;
}

}  // namespace

int main() {
  const lynx::LayerShape layer{.kv_heads = kHeads, .key_dim = kHeadDim, .value_dim = kHeadDim, .rope = {}};
  const lynx::CacheShape shape{.element_type = lynx::ElementType::kBf16, .layers = {layer}};
  auto codec = lynx::MakeCodec("nested", shape);
  if (!codec.ok()) return Fail("MakeCodec", codec.status());
  const lynx::PageShape page_shape{
      .kind = lynx::KvKind::kKey, .heads = kHeads, .head_dim = kHeadDim, .tokens = kTokens};

  lynx::CacheBlock original(shape, 0, kTokens), copy(shape, 0, kTokens);
  const auto rows = original.Rows(0, lynx::KvKind::kKey);
  for (std::size_t i = 0; i < rows.size() / 2; ++i) {
    const std::uint16_t element = AsBf16(std::sin(static_cast<float>(i) * 0.37f));
    std::memcpy(&rows[2 * i], &element, 2);
  }
  const lynx::PageAddress address{.layer = 0,
                                  .kind = lynx::KvKind::kKey,
                                  .first_head = 0,
                                  .head_count = kHeads,
                                  .first_token = 0,
                                  .token_count = kTokens};
  const auto page = std::as_const(original).Page(address);
  if (!page.ok()) return Fail("Page", page.status());

  const int streams = (*codec)->info().stream_count;
  std::vector<std::vector<std::byte>> storage(streams);
  std::vector<std::span<std::byte>> buffers(streams);
  for (int k = 0; k < streams; ++k) {
    storage[k].resize((*codec)->MaxBytes(page_shape, k));
    buffers[k] = storage[k];
  }
  std::vector<std::size_t> sizes(streams);
  std::vector<std::byte> scratch((*codec)->ScratchBytes(page_shape));
  if (const auto status = (*codec)->Encode(*page, buffers, sizes, scratch); !status.ok()) return Fail("Encode", status);

  // Any prefix of the streams decodes; each one more is closer to the original.
  std::vector<std::span<const std::byte>> received;
  float last_error = 2;
  for (int k = 0; k < streams; ++k) {
    received.push_back(buffers[k].first(sizes[k]));
    const auto target = copy.Page(address);
    if (!target.ok()) return Fail("Page", target.status());
    if (const auto status = (*codec)->Decode(received, *target, scratch); !status.ok()) return Fail("Decode", status);
    const float error = MaxError(rows, copy.Rows(0, lynx::KvKind::kKey));
    std::printf("%d of %d streams: largest error %.4f\n", k + 1, streams, error);
    if (!(error < last_error)) return Fail("Decode", lynx::Corrupt("one more stream did not bring the page closer"));
    last_error = error;
  }
  std::printf("lynx %s (%s)\n", lynx::Version(), lynx::BuildCommit());
  return last_error < 0.02f ? 0 : 1;
}
