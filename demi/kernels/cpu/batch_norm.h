#pragma once

#include <cstring>

#include "demi/kernels/batch_norm_formulas.h"
#include "demi/kernels/cpu/memory.h"

// What the passes of batch_norm_loops.h need of vectors. Included after the file that defines
// Vector; internal linkage.
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
inline Vector get_byte(Vector, const std::uint8_t* array, std::int64_t i) {
  return from_whole(load_words(array + i));
}
inline Vector get_byte(Vector as, const std::uint8_t* array, std::int64_t i, int n) {
  std::uint8_t padded[Vector::width] = {};
  std::memcpy(padded, array + i, static_cast<std::size_t>(n));
  return get_byte(as, padded, 0);
}
inline void put_byte(std::uint8_t* array, std::int64_t i, Vector x) {
  store_words(array + i, to_whole(x));
}
inline void put_byte(std::uint8_t* array, std::int64_t i, Vector x, int n) {
  std::uint8_t padded[Vector::width];
  put_byte(padded, 0, x);
  std::memcpy(array + i, padded, static_cast<std::size_t>(n));
}
template <Storage storage>
inline Vector rounded(Vector x) {
  if constexpr (storage == Storage::fp16) return from_fp16(to_fp16(x));
  if constexpr (storage == Storage::bf16) return from_bf16(to_bf16(x));
  return x;
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/batch_norm_loops.h"
