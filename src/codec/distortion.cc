#include "codec/distortion.h"

#include <algorithm>
#include <cmath>

#include "base/float16.h"

namespace lynx {

void Distortion::Add(const Distortion& other) {
  signal += other.signal;
  noise += other.noise;
  max_error = std::max(max_error, other.max_error);
}

Result<Distortion> MeasureDistortion(const PageView& original, const PageView& other) {
  if (original.address.head_count != other.address.head_count || original.head_dim != other.head_dim ||
      original.address.token_count != other.address.token_count) {
    return Invalid("distortion: the pages differ in shape");
  }
  Distortion sum;
  for (int token = 0; token < original.address.token_count; ++token) {
    for (int head = 0; head < original.address.head_count; ++head) {
      for (int channel = 0; channel < original.head_dim; ++channel) {
        const double value = LoadElement(original.At(token, head, channel), original.element_type);
        const double error = LoadElement(other.At(token, head, channel), other.element_type) - value;
        sum.signal += value * value;
        sum.noise += error * error;
        sum.max_error = std::max(sum.max_error, std::fabs(error));
      }
    }
  }
  return sum;
}

}  // namespace lynx
