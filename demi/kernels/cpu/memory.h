#pragma once

#include <cstdint>

#include "demi/kernels/cpu/vector.h"
#include "demi/kernels/step_table.h"

// A vector of elements in and out of an array of any storage. Included after the file that defines
// Vector; internal linkage.
namespace demi::kernels {
namespace {

template <Storage storage>
inline Vector load_elements(const void* array, std::int64_t i) {
  if constexpr (storage == Storage::fp32) return load(static_cast<const float*>(array) + i);
  if constexpr (storage == Storage::fp16)
    return from_fp16(load_half(static_cast<const std::uint16_t*>(array) + i));
  if constexpr (storage == Storage::bf16)
    return from_bf16(load_half(static_cast<const std::uint16_t*>(array) + i));
}

/// Asks for the line of element i, which may lie beyond the array's end.
template <Storage storage>
inline void prefetch(const void* array, std::int64_t i) {
  const auto address =
      reinterpret_cast<std::uintptr_t>(array) + static_cast<std::uintptr_t>(i * bytes_of(storage));
  _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

/// The first n < width elements; the others are 0.
template <Storage storage>
inline Vector load_elements(const void* array, std::int64_t i, int n) {
  if constexpr (storage == Storage::fp32) return load(static_cast<const float*>(array) + i, n);
  if constexpr (storage == Storage::fp16)
    return from_fp16(load_half(static_cast<const std::uint16_t*>(array) + i, n));
  if constexpr (storage == Storage::bf16)
    return from_bf16(load_half(static_cast<const std::uint16_t*>(array) + i, n));
}

inline void store_elements(void* array, Storage storage, std::int64_t i, Vector x) {
  switch (storage) {
    case Storage::bf16:
      return store_half(static_cast<std::uint16_t*>(array) + i, to_bf16(x));
    case Storage::fp16:
      return store_half(static_cast<std::uint16_t*>(array) + i, to_fp16(x));
    default:
      return store(static_cast<float*>(array) + i, x);
  }
}

inline void store_elements(void* array, Storage storage, std::int64_t i, Vector x, int n) {
  switch (storage) {
    case Storage::bf16:
      return store_half(static_cast<std::uint16_t*>(array) + i, to_bf16(x), n);
    case Storage::fp16:
      return store_half(static_cast<std::uint16_t*>(array) + i, to_fp16(x), n);
    default:
      return store(static_cast<float*>(array) + i, x, n);
  }
}

}  // namespace
}  // namespace demi::kernels
