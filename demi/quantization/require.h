#pragma once

#include <ATen/core/Tensor.h>

namespace demi::quantization {

/// Throws UsageError for a dtype other than fp32, bf16 and fp16.
void require_dtype(const char* where, at::ScalarType dtype);
/// Throws UsageError for a tensor without dimensions.
void require_dimensions(const char* where, const at::Tensor& values);

}  // namespace demi::quantization
