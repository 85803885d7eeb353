// For tests: what operator new has given and operator delete has not taken back, in the whole process. Only programs of
// the full tier count (live_heap_full_test.cc).
#pragma once

#include <cstdint>

namespace lynx {

std::int64_t LiveHeapBytes();
// The most since the last ForgetHeapPeak.
std::int64_t PeakHeapBytes();
void ForgetHeapPeak();

}  // namespace lynx
