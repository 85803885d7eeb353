#include "codec/page_io.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/float16.h"

namespace lynx {
namespace {

// Calls run(position, count, row_offset) for every stretch of elements that is contiguous in the page; row_offset
// counts elements of the dense rows. Dense pages give one run per token, scattered channels runs of one element.
template <typename Byte, typename Run>
void ForEachRun(const BasicPage<Byte>& page, int first_token, int token_count, Run run) {
  const std::ptrdiff_t bytes = ElementBytes(page.element_type);
  const int heads = page.address.head_count;
  const bool dense_channels = page.channel_stride == bytes || page.head_dim == 1;
  const bool dense_heads = dense_channels && (heads == 1 || page.head_stride == page.head_dim * bytes);
  std::size_t offset = 0;
  for (int token = first_token; token < first_token + token_count; ++token) {
    if (dense_heads) {
      run(page.At(token, 0, 0), page.channels(), offset);
      offset += page.channels();
      continue;
    }
    for (int head = 0; head < heads; ++head, offset += page.head_dim) {
      if (dense_channels) {
        run(page.At(token, head, 0), page.head_dim, offset);
        continue;
      }
      for (int channel = 0; channel < page.head_dim; ++channel) {
        run(page.At(token, head, channel), 1, offset + channel);
      }
    }
  }
}

template <ElementType type>
void LoadRun(const std::byte* from, int count, float* to) {
  for (int i = 0; i < count; ++i) to[i] = LoadElement(from + i * ElementBytes(type), type);
}

template <ElementType type>
void StoreRun(const float* from, int count, std::byte* to) {
  for (int i = 0; i < count; ++i) StoreElement(from[i], type, to + i * ElementBytes(type));
}

template <ElementType type>
void GatherAs(const PageView& page, int first_token, int token_count, float* rows) {
  ForEachRun(page, first_token, token_count, [rows](const std::byte* from, int count, std::size_t offset) {
    LoadRun<type>(from, count, rows + offset);
  });
}

template <ElementType type>
void ScatterAs(const float* rows, int first_token, int token_count, const PageSpan& page) {
  ForEachRun(page, first_token, token_count,
             [rows](std::byte* to, int count, std::size_t offset) { StoreRun<type>(rows + offset, count, to); });
}

}  // namespace

void GatherValues(const PageView& page, int first_token, int token_count, float* rows) {
  switch (page.element_type) {
    case ElementType::kBf16:
      return GatherAs<ElementType::kBf16>(page, first_token, token_count, rows);
    case ElementType::kF16:
      return GatherAs<ElementType::kF16>(page, first_token, token_count, rows);
    case ElementType::kF32:
      return GatherAs<ElementType::kF32>(page, first_token, token_count, rows);
  }
}

void ScatterValues(const float* rows, int first_token, int token_count, const PageSpan& page) {
  switch (page.element_type) {
    case ElementType::kBf16:
      return ScatterAs<ElementType::kBf16>(rows, first_token, token_count, page);
    case ElementType::kF16:
      return ScatterAs<ElementType::kF16>(rows, first_token, token_count, page);
    case ElementType::kF32:
      return ScatterAs<ElementType::kF32>(rows, first_token, token_count, page);
  }
}

void CopyElements(const std::byte* from, ElementType from_type, std::size_t count, ElementType to_type, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i, from += ElementBytes(from_type), to += ElementBytes(to_type)) {
    StoreElement(LoadElement(from, from_type), to_type, to);
  }
}

void GatherBits(const PageView& page, std::byte* rows) {
  const std::size_t bytes = ElementBytes(page.element_type);
  ForEachRun(page, 0, page.address.token_count, [rows, bytes](const std::byte* from, int count, std::size_t offset) {
    std::memcpy(rows + offset * bytes, from, count * bytes);
  });
}

void ScatterBits(const std::byte* rows, ElementType rows_type, const PageSpan& page) {
  const std::size_t bytes = ElementBytes(rows_type);
  const bool same_type = rows_type == page.element_type;
  ForEachRun(page, 0, page.address.token_count, [&](std::byte* to, int count, std::size_t offset) {
    if (same_type) {
      std::memcpy(to, rows + offset * bytes, count * bytes);
      return;
    }
    CopyElements(rows + offset * bytes, rows_type, std::size_t(count), page.element_type, to);
  });
}

bool AllWithin(const float* values, std::size_t count, float limit) {
  // As integers the magnitude bits of floats are ordered, infinities and NaN above all others; the sign bit of a
  // difference tells whether one lies above the limit.
  const auto limit_bits = std::bit_cast<std::int32_t>(limit);
  std::int32_t signs = 0;
  for (std::size_t i = 0; i < count; ++i) {
    signs |= limit_bits - std::int32_t(std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  }
  return signs >= 0;
}

}  // namespace lynx
