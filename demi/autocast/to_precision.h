#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Converts a model in place: every floating point parameter and buffer to `dtype` (fp16, bf16,
/// fp32 or fp64). All gradients are dropped, those of tensors that have the dtype already too,
/// since the others would keep the old dtype. Integer and complex tensors do not change. The tensor
/// objects stay the same, so optimizers and shared modules keep their parameters. Weights of an RNN
/// on CUDA are made contiguous again.
///
/// With `keep_normalisation_fp32` and a 16-bit dtype, BatchNorm*, InstanceNorm*, LayerNorm,
/// GroupNorm, demi::nn::Norm, the normalisations of an ImportedModel and what else is derived from
/// demi::Normalisation have weights and running statistics in FP32 (16-bit ones are converted
/// back), because statistics summed in 16 bits stop growing. LocalResponseNorm and CrossMapLRN2d
/// have no parameters.
///
/// The converted model needs its input in `dtype`. Run it in `Autocast region(device, dtype)`,
/// which casts the input once and no weight, or pass `to_precision(input, dtype)`: LibTorch's
/// normalisations accept 16-bit inputs with FP32 weights on a CPU, and BatchNorm does on CUDA;
/// LayerNorm and GroupNorm on CUDA need the region. Throws UsageError for any other dtype.
/// Synchronises only if a copy does.
DEMI_API void to_precision(torch::nn::Module& module, c10::ScalarType dtype,
                           bool keep_normalisation_fp32 = true);

/// The tensor in `dtype` if it is floating point, else the tensor itself. Differentiable.
DEMI_API at::Tensor to_precision(const at::Tensor& tensor, c10::ScalarType dtype);

/// Whether to_precision keeps this layer in FP32. Its children are not considered.
DEMI_API bool is_normalisation(const torch::nn::Module& module);

}  // namespace demi
