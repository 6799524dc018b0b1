#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::quantization {

inline constexpr int kHadamard = 16;
inline constexpr float kHadamardSigns[kHadamard] = {1,  1,  1,  -1, 1,  -1, -1, -1,
                                                    -1, -1, -1, 1,  -1, 1,  -1, -1};

/// hadamard() of x[0] to x[15], of vectors or of tensors: rounds of sums and differences, which the
/// last factor, a power of two, does not round again.
template <class T>
void hadamard_rounds(T (&x)[kHadamard]) {
  for (int i = 0; i < kHadamard; ++i)
    if (kHadamardSigns[i] < 0) x[i] = -x[i];
  for (int step = 1; step < kHadamard; step *= 2)
    for (int i = 0; i < kHadamard; ++i) {
      if (i & step) continue;
      const T sum = x[i] + x[i + step];
      x[i + step] = x[i] - x[i + step];
      x[i] = sum;
    }
  for (int i = 0; i < kHadamard; ++i) x[i] = x[i] * 0.25f;
}

/// hadamard() of an FP32 matrix whose transformed length is a multiple of 16, by LibTorch's ops on
/// any device.
DEMI_API at::Tensor hadamard_by_ops(const at::Tensor& matrix, bool down);

}  // namespace demi::quantization
