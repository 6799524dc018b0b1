#pragma once

#include <cstdint>

#include "demi/core/export.h"

namespace demi::kernels {

/// Products c = a b and c += a b of bf16 matrices with sums in FP32, by the processor's own
/// instructions, for matrices too small for a call of LibTorch's each. b is packed once and stays
/// in the cache; a and c are used where they lie. One thread; calls may overlap.
///
/// Storage bf16, products exact, sums FP32. Pairs of neighbouring k are added first, so the order
/// of the sums is not LibTorch's. VDPBF16PS rounds to nearest and treats subnormal numbers as 0
/// (Intel SDM).
struct Bf16Product {
  /// b (k, n): element (i, j) is from[i row_stride + j column_stride]. `to` has packed_size(k, n)
  /// elements.
  void (*pack)(std::uint16_t* to, const std::uint16_t* from, std::int64_t k, std::int64_t n,
               std::int64_t row_stride, std::int64_t column_stride);

  /// a (rows, k) and c (rows, n) with that many elements between rows; of packed b the first k of
  /// b_rows rows. `add`: adds to c instead of writing it.
  void (*multiply)(const std::uint16_t* a, std::int64_t a_stride, const std::uint16_t* packed_b,
                   std::int64_t b_rows, float* c, std::int64_t c_stride, std::int64_t rows,
                   std::int64_t k, std::int64_t n, bool add);

  /// Elements of a packed (k, n): pairs of k by whole vectors of 16 columns, zeros where b ends.
  static constexpr std::int64_t packed_size(std::int64_t k, std::int64_t n) {
    return (k + 1) / 2 * ((n + 15) / 16) * 32;
  }
};

/// Null if the compiler or the processor has no AVX512_BF16, if DEMI_KERNELS or ATEN_CPU_CAPABILITY
/// asks for an older path, or if ONEDNN_MAX_CPU_ISA rules the instructions out.
DEMI_API const Bf16Product* bf16_product();

}  // namespace demi::kernels
