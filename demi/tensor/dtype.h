#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "demi/core/export.h"
#include "demi/kernels/storage.h"

namespace demi::tensor {

/// True for fp16 and bf16.
inline bool is_16_bit(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::Half || dtype == c10::ScalarType::BFloat16;
}

/// The kernels' format for fp16, bf16 and fp32 elements. fp32 for every other dtype: the kernels do
/// not read those.
inline kernels::Storage storage_of(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Half) return kernels::Storage::fp16;
  if (dtype == c10::ScalarType::BFloat16) return kernels::Storage::bf16;
  return kernels::Storage::fp32;
}

/// "fp16", "bf16", "fp32", "fp64", "fp8_e4m3", "fp8_e5m2", "int64", "uint8", "complex64", "bool";
/// LibTorch's name for dtypes that a safetensors file cannot hold.
DEMI_API std::string name_of(c10::ScalarType dtype);

}  // namespace demi::tensor
