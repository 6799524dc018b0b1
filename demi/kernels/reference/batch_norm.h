#pragma once

#include "demi/kernels/batch_norm_formulas.h"
#include "demi/kernels/reference/elements.h"

// What the passes of batch_norm_loops.h need of float. Internal linkage.
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
inline float get_byte(float, const std::uint8_t* array, std::int64_t i) { return array[i]; }
inline void put_byte(std::uint8_t* array, std::int64_t i, float x) {
  array[i] = static_cast<std::uint8_t>(x);
}
template <Storage storage>
inline float rounded(float x) {
  if constexpr (storage == Storage::fp16) return fp32_from_fp16(fp16_from_fp32(x));
  if constexpr (storage == Storage::bf16) return fp32_from_bf16(bf16_from_fp32(x));
  return x;
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/batch_norm_loops.h"
