#pragma once

#include <cstdint>

#include "demi/kernels/host_device.h"
#include "demi/kernels/step_table.h"

// The order of every sum of squares, the same on each path, so that a norm has the same bits
// everywhere:
//
//   element i of a block = kChunk × c + kRow × r + kLanes × g + l      c < 8, r < 8, g < 8, l < 32
//   A[c][g][l] = Σ x² over r;  T[c][l] = Σ A over g;  B[l] = Σ T over c;  each from 0 up
//   the block's sum: B[l] += B[l + s] for s = 16, 8, 4, 2, 1; B[0]
//   blocks: S[k] = Σ of blocks k, k + 256, ... ; S[k] += S[k + s] for s = 128 ... 1; S[0]
//
// x is FP32 (16-bit gradients are widened first), x² and the sums are FP64: a square of 48 bits is
// exact, neither overflows nor underflows, and FMA makes no difference. A warp reads one row of 256
// elements with one 16-byte load per thread (bf16), a vector unit one group of 32 lanes; absent
// elements count as 0, which changes no bit.
namespace demi::kernels {

inline constexpr int kLanes = 32;
inline constexpr int kRow = 256;
inline constexpr int kChunk = 2048;
inline constexpr int kSumLanes = 256;

namespace {

/// Adds up n values by halving; n is a power of two. The result is in values[0].
DEMI_HOST_DEVICE void fold(double* values, int n) {
  for (int s = n / 2; s > 0; s /= 2) {
    for (int k = 0; k < s; ++k) values[k] += values[k + s];
  }
}

/// Σ get(i) for i < count in the order above. Lanes that hold nothing are not folded: they would
/// add 0.
template <class Get>
DEMI_HOST_DEVICE double sum_over_blocks(std::int64_t count, Get get) {
  if (count <= 1) return count == 1 ? get(0) : 0.0;
  double lanes[kSumLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) lanes[i % kSumLanes] += get(i);
  int used = kSumLanes;
  while (used / 2 >= count) used /= 2;
  fold(lanes, used);
  return lanes[0];
}

}  // namespace
}  // namespace demi::kernels
