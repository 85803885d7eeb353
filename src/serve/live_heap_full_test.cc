#include "serve/live_heap_test.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace {

std::atomic<std::int64_t> live = 0, peak = 0;

void* Count(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::int64_t now = live += std::int64_t(malloc_usable_size(memory));
  for (std::int64_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return memory;
}
void Free(void* memory) {
  if (memory != nullptr) live -= std::int64_t(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// The other forms call these.
void* operator new(std::size_t bytes) { return Count(std::malloc(bytes > 0 ? bytes : 1)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = std::size_t(alignment);
  return Count(std::aligned_alloc(align, (bytes + align) / align * align));
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { Free(memory); }

namespace lynx {

std::int64_t LiveHeapBytes() { return live; }
std::int64_t PeakHeapBytes() { return peak; }
void ForgetHeapPeak() { peak = live.load(); }

namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

template <typename T>
void ExpectCounted() {
  const std::int64_t before = LiveHeapBytes();
  ForgetHeapPeak();
  auto memory = std::make_unique<std::vector<T>>((1 << 20) / sizeof(T));
  EXPECT_GE(LiveHeapBytes(), before + (1 << 20));
  memory.reset();
  EXPECT_LT(LiveHeapBytes(), before + (1 << 16));
  EXPECT_GE(PeakHeapBytes(), before + (1 << 20));
}

TEST(LiveHeap, CountsWhatIsHeld) {
  ExpectCounted<std::byte>();
  ExpectCounted<Line>();
}

}  // namespace
}  // namespace lynx
