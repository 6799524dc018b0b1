#pragma once

#include "demi/kernels/cpu/memory.h"

// What wide_loops.h needs of vectors. Included after the file that defines Vector; internal
// linkage.
namespace demi::kernels {
namespace {

template <class Wide>
inline constexpr std::int64_t kWidthOf = Wide::width;

template <Storage storage, class... Some>
inline Vector get(Vector, const void* array, std::int64_t i, Some... some) {
  return load_elements<storage>(array, i, some...);
}
template <Storage storage, class... Some>
inline void put(void* array, std::int64_t i, Vector x, Some... some) {
  store_elements(array, storage, i, x, some...);
}
template <class... Some>
inline Vector get_float(Vector, const float* array, std::int64_t i, Some... some) {
  return load(array + i, some...);
}
template <class... Some>
inline void put_float(float* array, std::int64_t i, Vector x, Some... some) {
  store(array + i, x, some...);
}
template <Storage storage>
inline Vector rounded(Vector x) {
  if constexpr (storage == Storage::fp16) return from_fp16(to_fp16(x));
  if constexpr (storage == Storage::bf16) return from_bf16(to_bf16(x));
  return x;
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/wide_loops.h"  // IWYU pragma: export
