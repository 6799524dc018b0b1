#pragma once

#include <ATen/core/Tensor.h>

#include "demi/batch_norm/batch_norm.h"
#include "demi/kernels/batch_norm.h"

// Tensors in the form that the kernels read.
namespace demi::batch_norm {

/// The memory format of an input for the kernels: channels_last or contiguous.
at::MemoryFormat format_of(const at::Tensor& input);

/// Shapes and the input, as the kernels read them.
kernels::BatchNorm described(const at::Tensor& input, bool relu, const MaxPooling& pool);

/// Gives the kernels mean, scale and shift of ChannelStatistics::channels, (4, C).
void point_to(kernels::BatchNorm& norm, const at::Tensor& channels);

}  // namespace demi::batch_norm
