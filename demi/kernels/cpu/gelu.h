#pragma once

#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/gelu_formulas.h"

// The GELU of CpuKernels with vectors. Included after the file that defines Vector; internal
// linkage.
namespace demi::kernels {
namespace {

template <Storage storage>
void gelu_from(void* to, const void* from, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    store_elements(to, storage, i, gelu_of(load_elements<storage>(from, i, some...)), some...);
  });
}

template <Storage storage>
void gelu_gradient_from(void* to, const void* gradient, const void* from, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    const Vector slope = gelu_slope(load_elements<storage>(from, i, some...));
    store_elements(to, storage, i, load_elements<storage>(gradient, i, some...) * slope, some...);
  });
}

void gelu_array(void* to, Storage storage, const void* from, std::int64_t n) {
  switch (storage) {
    case Storage::bf16:
      return gelu_from<Storage::bf16>(to, from, n);
    case Storage::fp16:
      return gelu_from<Storage::fp16>(to, from, n);
    default:
      return gelu_from<Storage::fp32>(to, from, n);
  }
}

void gelu_gradient_array(void* to, Storage storage, const void* gradient, const void* from,
                         std::int64_t n) {
  switch (storage) {
    case Storage::bf16:
      return gelu_gradient_from<Storage::bf16>(to, gradient, from, n);
    case Storage::fp16:
      return gelu_gradient_from<Storage::fp16>(to, gradient, from, n);
    default:
      return gelu_gradient_from<Storage::fp32>(to, gradient, from, n);
  }
}

}  // namespace
}  // namespace demi::kernels
