#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::products {

/// A matrix b (k, n) in panels of `width` columns, one after the other, the last one narrower: the
/// right operand of block products. In bf16 `rows` is even, each width a multiple of 16, at most 64
/// (64 but for the last one, if LibTorch has none), and of a panel rows 0 and 1 lie side by side
/// column by column, then rows 2 and 3, as oneDNN packs them.
template <class Number>
struct Panels {
  const Number* data;
  std::int64_t rows;  // in memory, k or more
  std::int64_t width;
};

/// c (rows, n) = a b, or c += a b with `add`: a (rows, k), sums in FP32, for products that are too
/// small for a call of at::mm each: by LibTorch, in bf16 without AMX by demi's kernel. Rows of a
/// and c have a_stride and c_stride elements. Any thread; each one calls release_block_products()
/// after its last.
DEMI_API void multiply(const c10::BFloat16* a, std::int64_t a_stride,
                       const Panels<c10::BFloat16>& b, float* c, std::int64_t c_stride,
                       std::int64_t rows, std::int64_t k, std::int64_t n, bool add);
DEMI_API void multiply(const float* a, std::int64_t a_stride, const Panels<float>& b, float* c,
                       std::int64_t c_stride, std::int64_t rows, std::int64_t k, std::int64_t n,
                       bool add);
DEMI_API void release_block_products();

/// Whether LibTorch's block products of FP32 work on this processor. Tried once.
DEMI_API bool has_fp32_block_products();
/// Whether LibTorch's block products of bf16 work here: it has them with AMX alone.
DEMI_API bool has_bf16_block_products();
/// Whether multiply() of bf16 can run: LibTorch's, or demi's with AVX512_BF16.
DEMI_API bool multiplies_bf16_blocks();

}  // namespace demi::products
