#include "demi/products/block_product.h"

#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "demi/kernels/bf16_product.h"

namespace demi::products {
namespace {

namespace blas = at::native::cpublas;

template <class Number>
void multiply_panels(const Number* a, std::int64_t a_stride, const Panels<Number>& b, float* c,
                     std::int64_t c_stride, std::int64_t rows, std::int64_t k, std::int64_t n,
                     bool add, bool is_packed) {
  for (std::int64_t column = 0; column < n; column += b.width) {
    const std::int64_t width = std::min(b.width, n - column);
    blas::brgemm(rows, width, k, a_stride, width, c_stride, add, a, b.data + column * b.rows,
                 c + column, is_packed);
  }
}

// Two panels of small whole numbers, added to ones: every product and sum is exact in any order.
template <class Number>
bool multiplies(bool is_packed) {
  constexpr std::int64_t kRows = 5, kInner = 6, kColumns = 128, kWidth = 64;
  std::vector<Number> a(kRows * kInner), b(kInner * kColumns);
  std::vector<float> c(kRows * kColumns, 1);
  const auto a_at = [](std::int64_t i, std::int64_t l) { return (i * kInner + l) % 7 - 3; };
  const auto b_at = [](std::int64_t l, std::int64_t j) { return (l * kColumns + j) % 11 - 5; };
  for (std::int64_t l = 0; l < kInner; ++l) {
    for (std::int64_t i = 0; i < kRows; ++i) a[i * kInner + l] = float(a_at(i, l));
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const std::int64_t panel = j / kWidth * kWidth * kInner, column = j % kWidth;
      b[panel + (is_packed ? l / 2 * 2 * kWidth + 2 * column + l % 2 : l * kWidth + column)] =
          float(b_at(l, j));
    }
  }
  try {
    multiply_panels<Number>(a.data(), kInner, {b.data(), kInner, kWidth}, c.data(), kColumns, kRows,
                            kInner, kColumns, /*add=*/true, is_packed);
    release_block_products();
  } catch (const std::exception&) {
    return false;  // not in this LibTorch, or not on this processor
  }
  for (std::int64_t i = 0; i < kRows; ++i)
    for (std::int64_t j = 0; j < kColumns; ++j) {
      std::int64_t sum = 1;
      for (std::int64_t l = 0; l < kInner; ++l) sum += a_at(i, l) * b_at(l, j);
      if (c[i * kColumns + j] != float(sum)) return false;
    }
  return true;
}

}  // namespace

void multiply(const c10::BFloat16* a, std::int64_t a_stride, const Panels<c10::BFloat16>& b,
              float* c, std::int64_t c_stride, std::int64_t rows, std::int64_t k, std::int64_t n,
              bool add) {
  if (has_bf16_block_products())
    return multiply_panels(a, a_stride, b, c, c_stride, rows, k, n, add, /*is_packed=*/true);
  const auto bits = [](const c10::BFloat16* of) {
    return reinterpret_cast<const std::uint16_t*>(of);
  };
  // Asked once: it reads the environment.
  static const kernels::Bf16Product& own = *kernels::bf16_product();
  own.multiply(bits(a), a_stride, bits(b.data), b.rows, c, c_stride, rows, k, n, add);
}

void multiply(const float* a, std::int64_t a_stride, const Panels<float>& b, float* c,
              std::int64_t c_stride, std::int64_t rows, std::int64_t k, std::int64_t n, bool add) {
  multiply_panels(a, a_stride, b, c, c_stride, rows, k, n, add, /*is_packed=*/false);
}

void release_block_products() { blas::brgemm_release(); }

bool has_fp32_block_products() {
  static const bool result = multiplies<float>(/*is_packed=*/false);
  return result;
}

bool has_bf16_block_products() {
  static const bool result =
      blas::could_pack(at::kBFloat16) && multiplies<c10::BFloat16>(/*is_packed=*/true);
  return result;
}

bool multiplies_bf16_blocks() { return has_bf16_block_products() || kernels::bf16_product(); }

}  // namespace demi::products
