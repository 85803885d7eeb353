// How far two pages are apart.
#pragma once

#include "lynx/page.h"
#include "lynx/result.h"

namespace lynx {

// Sums over elements, so that pages can be added up; double precision.
struct Distortion {
  double signal = 0;     // sum of squares of the original
  double noise = 0;      // sum of squares of the differences
  double max_error = 0;  // greatest magnitude of a difference
  // noise / signal; 0 when both are 0.
  double nmse() const { return noise == 0 ? 0 : noise / signal; }
  void Add(const Distortion& other);
};

// kInvalid when the pages differ in heads, head_dim or tokens.
Result<Distortion> MeasureDistortion(const PageView& original, const PageView& other);

}  // namespace lynx
