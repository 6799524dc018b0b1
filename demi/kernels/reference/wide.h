#pragma once

#include "demi/kernels/reference/elements.h"

// What wide_loops.h needs of float. Internal linkage.
namespace demi::kernels {
namespace {

template <class Wide>
inline constexpr std::int64_t kWidthOf = 1;

template <Storage storage>
inline float get(float, const void* array, std::int64_t i) {
  return load_element(array, storage, i);
}
template <Storage storage>
inline void put(void* array, std::int64_t i, float x) {
  store_element(array, storage, i, x);
}
inline float get_float(float, const float* array, std::int64_t i) { return array[i]; }
inline void put_float(float* array, std::int64_t i, float x) { array[i] = x; }
template <Storage storage>
inline float rounded(float x) {
  if constexpr (storage == Storage::fp16) return fp32_from_fp16(fp16_from_fp32(x));
  if constexpr (storage == Storage::bf16) return fp32_from_bf16(bf16_from_fp32(x));
  return x;
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/wide_loops.h"  // IWYU pragma: export
