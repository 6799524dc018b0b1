#pragma once

// Vector, of the instruction set that this file is compiled for.
#if defined(__AVX512F__)
#include "demi/kernels/cpu/avx512.h"  // IWYU pragma: export
#else
#include "demi/kernels/cpu/avx2.h"  // IWYU pragma: export
#endif
