// Strided pages <-> dense rows. Rows are [token][channel] with channel = head * head_dim + channel of the head.
#pragma once

#include <cstddef>

#include "lynx/page.h"

namespace lynx {

// The values of tokens [first_token, first_token + token_count) of the page (indices relative to it).
void GatherValues(const PageView& page, int first_token, int token_count, float* rows);
// Stores rows into the page, rounded to its element type (nearest even).
void ScatterValues(const float* rows, int first_token, int token_count, const PageSpan& page);

// Elements side by side, from one type to another (nearest even).
void CopyElements(const std::byte* from, ElementType from_type, std::size_t count, ElementType to_type, std::byte* to);

// All valid elements of the page, bit for bit: page.elements() * ElementBytes(page.element_type) bytes.
void GatherBits(const PageView& page, std::byte* rows);
// The inverse. Rows of another element type than the page's are converted (nearest even).
void ScatterBits(const std::byte* rows, ElementType rows_type, const PageSpan& page);

// True when every value is finite and of magnitude <= limit.
bool AllWithin(const float* values, std::size_t count, float limit);

}  // namespace lynx
