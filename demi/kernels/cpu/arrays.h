#pragma once

#include <cstdint>

#include "demi/kernels/cpu/memory.h"
#include "demi/kernels/formulas.h"

// The array kernels of CpuKernels with vectors. Internal linkage.
namespace demi::kernels {
namespace {

/// body(i) for each full vector, body(i, n) for the rest.
template <class Body>
inline __attribute__((always_inline)) void for_each_vector(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + Vector::width <= n; i += Vector::width) body(i);
  if (i < n) body(i, static_cast<int>(n - i));
}

template <Storage storage>
void widen_from(float* to, const void* from, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    store(to + i, load_elements<storage>(from, i, some...), some...);
  });
}

void narrow_array(void* to, Storage storage, const float* from, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    store_elements(to, storage, i, load(from + i, some...), some...);
  });
}

void widen_array(float* to, const void* from, Storage storage, std::int64_t n) {
  switch (storage) {
    case Storage::bf16:
      return widen_from<Storage::bf16>(to, from, n);
    case Storage::fp16:
      return widen_from<Storage::fp16>(to, from, n);
    default:
      return widen_from<Storage::fp32>(to, from, n);
  }
}

std::uint32_t unscale_array(float* values, float factor, std::int64_t n) {
  Vector::Bits bits = no_bits();
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    const Vector x = load(values + i, some...);
    bits = greater_magnitude(bits, x);
    store(values + i, x * Vector(factor), some...);
  });
  return greatest(bits);
}

void lerp_array(float* start, const float* end, float weight, std::int64_t n) {
  for_each_vector(n, [&](std::int64_t i, auto... some) {
    store(start + i, lerp(load(start + i, some...), load(end + i, some...), weight), some...);
  });
}

}  // namespace
}  // namespace demi::kernels
