#pragma once

#include <cstring>

#include "demi/kernels/batch_norm_formulas.h"
#include "demi/kernels/cpu/wide.h"

// What the passes of batch_norm_loops.h need of vectors. Included after the file that defines
// Vector; internal linkage.
namespace demi::kernels {
namespace {

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

inline Vector get_every(Vector, const float* array, std::int64_t i, std::int64_t stride) {
  if (stride == 1) return load(array + i);
  if (stride == 2) return even_elements(load(array + i), load(array + i + Vector::width));
  float apart[Vector::width];
  for (std::int64_t k = 0; k < Vector::width; ++k) apart[k] = array[i + k * stride];
  return load(apart);
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/batch_norm_loops.h"
