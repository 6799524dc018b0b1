#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Converts a model in place: every floating point parameter and buffer to `dtype` (fp16, bf16,
/// fp32 or fp64). Gradients are dropped, since they would keep the old dtype. Integer and complex
/// tensors stay as they are, and so do the tensor objects themselves: optimizers and shared modules
/// go on seeing the same parameters. Weights of an RNN on CUDA are made contiguous again.
///
/// With `keep_normalisation_fp32` and a 16-bit dtype, BatchNorm*, InstanceNorm*, LayerNorm and
/// GroupNorm keep weights and running statistics in FP32 (one that was in 16 bit goes back to
/// FP32): statistics summed in 16 bit stop growing. LocalResponseNorm and CrossMapLRN2d have no
/// parameters.
///
/// A forward of the result wants its input in `dtype` and these layers mixed inputs. Run it in
/// `Autocast region(device, dtype)`, which casts the input once and no weight, or give
/// `to_precision(input, dtype)`: LibTorch's normalisations take 16-bit inputs beside FP32 weights
/// on CPU, and BatchNorm does on CUDA; LayerNorm and GroupNorm on CUDA need the region. Throws
/// UsageError for any other dtype. Synchronises only where a copy does.
DEMI_API void to_precision(torch::nn::Module& module, c10::ScalarType dtype,
                           bool keep_normalisation_fp32 = true);

/// The tensor in `dtype` where it is floating point, else itself. Differentiable.
DEMI_API at::Tensor to_precision(const at::Tensor& tensor, c10::ScalarType dtype);

/// True for a layer that to_precision keeps in FP32. Looks at this module, not at its children.
DEMI_API bool is_normalisation(const torch::nn::Module& module);

}  // namespace demi
