#pragma once

#include <algorithm>

#include "demi/kernels/activation_formulas.h"
#include "demi/kernels/cpu/arrays.h"

// The activations of CpuKernels with vectors. 16-bit elements are widened piece by piece in the
// first-level cache. Included after the file that defines Vector; internal linkage.
namespace demi::kernels {
namespace {

template <Activation which>
void activate_piece(float* to, const float* from, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    store(to + i, activated<which>(load(from + i, some...)), some...);
  });
}

template <Activation which>
void multiply_by_slope(float* to, const float* gradient, const float* from, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    const Vector slope = activation_slope<which>(load(from + i, some...));
    store(to + i, load(gradient + i, some...) * slope, some...);
  });
}

constexpr std::int64_t kPiece = 512;

/// Element `at` of an array of any storage.
inline const void* element(const void* array, Storage storage, std::int64_t at) {
  return static_cast<const char*>(array) + at * bytes_of(storage);
}
inline void* element(void* array, Storage storage, std::int64_t at) {
  return static_cast<char*>(array) + at * bytes_of(storage);
}

void activate_array(Activation which, void* to, Storage storage, const void* from, std::int64_t n) {
  const auto activate = which == Activation::gelu   ? activate_piece<Activation::gelu>
                        : which == Activation::silu ? activate_piece<Activation::silu>
                                                    : activate_piece<Activation::gelu_tanh>;
  if (storage == Storage::fp32)
    return activate(static_cast<float*>(to), static_cast<const float*>(from), n);
  float values[kPiece];
  for (std::int64_t at = 0; at < n; at += kPiece) {
    const std::int64_t count = std::min(kPiece, n - at);
    widen_array(values, element(from, storage, at), storage, count);
    activate(values, values, count);
    narrow_array(element(to, storage, at), storage, values, count);
  }
}

void activation_gradient(Activation which, void* to, Storage storage, const void* gradient,
                         const void* from, std::int64_t n) {
  const auto multiply = which == Activation::gelu   ? multiply_by_slope<Activation::gelu>
                        : which == Activation::silu ? multiply_by_slope<Activation::silu>
                                                    : multiply_by_slope<Activation::gelu_tanh>;
  if (storage == Storage::fp32)
    return multiply(static_cast<float*>(to), static_cast<const float*>(gradient),
                    static_cast<const float*>(from), n);
  float values[kPiece], gradients[kPiece];
  for (std::int64_t at = 0; at < n; at += kPiece) {
    const std::int64_t count = std::min(kPiece, n - at);
    widen_array(values, element(from, storage, at), storage, count);
    widen_array(gradients, element(gradient, storage, at), storage, count);
    multiply(gradients, gradients, values, count);
    narrow_array(element(to, storage, at), storage, gradients, count);
  }
}

}  // namespace
}  // namespace demi::kernels
