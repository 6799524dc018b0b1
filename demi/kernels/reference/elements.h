#pragma once

#include <cstdint>

#include "demi/core/number.h"
#include "demi/kernels/step_table.h"

// One element in and out of memory. Internal linkage, as formulas.h.
namespace demi::kernels {
namespace {

inline float load_element(const void* array, Storage storage, std::int64_t i) {
  switch (storage) {
    case Storage::fp16:
      return fp32_from_fp16(static_cast<const std::uint16_t*>(array)[i]);
    case Storage::bf16:
      return fp32_from_bf16(static_cast<const std::uint16_t*>(array)[i]);
    default:
      return static_cast<const float*>(array)[i];
  }
}

inline void store_element(void* array, Storage storage, std::int64_t i, float value) {
  switch (storage) {
    case Storage::fp16:
      static_cast<std::uint16_t*>(array)[i] = fp16_from_fp32(value);
      break;
    case Storage::bf16:
      static_cast<std::uint16_t*>(array)[i] = bf16_from_fp32(value);
      break;
    default:
      static_cast<float*>(array)[i] = value;
  }
}

}  // namespace
}  // namespace demi::kernels
