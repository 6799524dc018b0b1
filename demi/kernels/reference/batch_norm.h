#pragma once

#include "demi/kernels/batch_norm_formulas.h"
#include "demi/kernels/reference/wide.h"

// What the passes of batch_norm_loops.h need of float. Internal linkage.
namespace demi::kernels {
namespace {

inline float get_byte(float, const std::uint8_t* array, std::int64_t i) { return array[i]; }
inline void put_byte(std::uint8_t* array, std::int64_t i, float x) {
  array[i] = static_cast<std::uint8_t>(x);
}

inline float get_every(float, const float* array, std::int64_t i, std::int64_t) { return array[i]; }

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/batch_norm_loops.h"
