#pragma once

#include <cstdint>

#include "demi/kernels/storage.h"

namespace demi::kernels {

/// How many numbers a product adds up in one chain; part of the order of its sums.
inline constexpr std::int64_t kChain = 256;

/// c = beta addend + alpha a b of matrices a and b, by FP32's fused multiply-add:
///
///     S_p = the sum of a[i, l] b[l, j] over l = 256 p ... 256 p + 255, one after the other from 0
///     c[i, j] = round(alpha (S_0 + S_1 + ...) + beta addend[i, j])
///
/// Each fused multiply-add rounds once. The order is that of each path and of each part of c: how c
/// is split changes no bit.
///
/// Strides are in elements. Of each operand one of the two is 1.
struct Product {
  Storage storage;       // of a and b: fp16, bf16 or fp32
  Storage result;        // of c: the same, or fp32, which is not rounded
  std::int64_t m, k, n;  // at least 1
  const void* a;         // (m, k)
  std::int64_t a_row, a_column;
  const void* b;  // (k, n)
  std::int64_t b_row, b_column;
  void* c;  // (m, n), rows of numbers next to each other
  std::int64_t c_row;
  const float* addend = nullptr;  // (m, n), or null: none
  std::int64_t addend_row = 0, addend_column = 0;
  float beta = 1, alpha = 1;
  float* work = nullptr;  // of work_size(m, k, n); faster from a multiple of 64 bytes on
};

/// Numbers of FP32 that a product of that size works in: panels of b, and sums if they are of
/// several chains.
constexpr std::int64_t work_size(std::int64_t m, std::int64_t k, std::int64_t n) {
  constexpr std::int64_t kWidest = 32, kTallest = 16;  // of the tiles of a path
  const std::int64_t columns = (n + kWidest - 1) / kWidest * kWidest;
  return columns * (k > kChain ? kChain + m + kTallest : k);
}

}  // namespace demi::kernels
