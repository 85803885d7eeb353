// The instruction sets that kernels are built for. Comes before Highway, in every file of kernels: a table of one
// instruction set is put together from all of them.
#pragma once

#define HWY_WANT_AVX3_DL  // 16-bit expand and compress
// The coder of `lynx` needs vectors of known length.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
