#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "demi/batch_norm/batch_norm.h"
#include "demi/kernels/batch_norm.h"

// Tensors in the form that the kernels read.
namespace demi::batch_norm {

/// The memory format of an input for the kernels: channels_last or contiguous.
at::MemoryFormat format_of(const at::Tensor& input);

/// Shapes and the input, as the kernels read them.
kernels::BatchNorm described(const at::Tensor& input, bool relu, const MaxPooling& pool);

/// New FP32 memory.
at::Tensor floats(std::initializer_list<std::int64_t> shape);

/// mean, scale and shift, (3, C), of mean and 1 / deviation, (2, C).
at::Tensor channels_of(const at::Tensor& statistics, const at::Tensor& weight,
                       const at::Tensor& bias);

/// Gives the kernels what channels_of() has made.
void point_to(kernels::BatchNorm& norm, const at::Tensor& channels);

}  // namespace demi::batch_norm
