#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"

namespace demi {

/// Options of add_layer_norm and add_rms_norm.
struct AddNormOptions {
  double eps = 1e-5;  // added to the variance, or to the mean of the squares
  /// The dtype of the normed rows. None: the sum's.
  std::optional<at::ScalarType> dtype = std::nullopt;
};

/// A sum, and its rows normalised.
struct SumAndNorm {
  at::Tensor sum;   // input + add
  at::Tensor norm;  // its rows, normalised
};

/// The end of a residual branch and the norm behind it in one pass over memory: input + add, and
/// LayerNorm of its rows (Ba et al. 2016, equation 4). `input` and `add` are (*, D). `add` may be
/// undefined: the sum is the input then. `weight` and `bias` are (D), or undefined. The sum has the
/// dtype of LibTorch's sum, FP32 where one of the two is; the normed rows have that of the options.
///
/// On a CPU, for FP32 and 16 bits, a kernel of demi's reads each tensor once, and so does backward,
/// which makes the gradients of both results into those of input and add, in their dtypes.
/// Arithmetic is FP32, and each result is rounded once; neither the number of threads nor the
/// instruction set changes a bit. For backward the sum is kept, and 8 bytes a row. Inf and NaN pass
/// as through LibTorch's operators.
///
/// LibTorch's operators run instead on other devices, for FP64 and other mixtures of dtypes (an
/// `add` in FP32 to an input in 16 bits; a `dtype` other than the sum's unless that is FP32),
/// inputs with gaps in memory, an `add` of another shape, parts and regions whose policy names add,
/// layer_norm or rms_norm, gradients of gradients, and with DEMI_KERNELS=aten.
///
/// An operator of the dispatcher, demi::add_layer_norm. Throws c10::Error for shapes that do not
/// fit. Does not synchronise.
DEMI_API SumAndNorm add_layer_norm(const at::Tensor& input, const at::Tensor& add,
                                   const at::Tensor& weight, const at::Tensor& bias,
                                   const AddNormOptions& options = {});

/// add_layer_norm with RMSNorm in its place (Zhang and Sennrich 2019, equation 4).
DEMI_API SumAndNorm add_rms_norm(const at::Tensor& input, const at::Tensor& add,
                                 const at::Tensor& weight, const AddNormOptions& options = {});

}  // namespace demi
