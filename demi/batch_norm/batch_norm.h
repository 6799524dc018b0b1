#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "demi/core/export.h"

namespace demi {

/// Windows of torch.nn.functional.max_pool2d, without dilation and ceil_mode, over height and
/// width. The default is no pooling; windows of one place with a larger stride subsample.
struct MaxPooling {
  std::array<std::int64_t, 2> size{1, 1};     // 1 or more
  std::array<std::int64_t, 2> stride{1, 1};   // 1 or more
  std::array<std::int64_t, 2> padding{0, 0};  // at most half of the size

  bool operator==(const MaxPooling&) const = default;
};

/// Options of batch_norm_relu.
struct BatchNormRelu {
  bool training = true;   // statistics of the batch; otherwise the running ones
  double momentum = 0.1;  // share of the batch in new running statistics
  double eps = 1e-5;      // added to the variance
  bool relu = true;       // ReLU behind the normalisation and the sum
  at::Tensor add = {};    // added before ReLU: (N, C, H, W), of the input's dtype. Undefined: none
  MaxPooling pool = {};   // behind ReLU
};

/// Batch normalisation (Ioffe and Szegedy 2015, algorithm 1), and what usually follows it, in few
/// passes over memory: (N, C, H, W) to the same, or to the pooled size, in the input's dtype and
/// memory format. `weight`, `bias` and the running statistics are (C), FP32, or undefined. In
/// training the running statistics move by `momentum`; the running variance is the unbiased one.
///
/// On a CPU an input of FP32, fp16 or bf16 in channels_last or contiguous is read once for its
/// statistics, and once for the result; backward reads input and gradient twice, and keeps one byte
/// an output for the pooling. Arithmetic is FP32, sums over the batch FP64; each result is rounded
/// once, so that neither the number of threads nor the instruction set changes a bit. Inf and NaN
/// pass as through LibTorch's operators.
///
/// On a GPU the same kernels run where the environment's DEMI_BATCH_NORM=cuda asks for them, for
/// channels_last alone: no GPU has run them yet.
///
/// LibTorch's operators run instead on other devices, for FP64, other layouts and dtypes, layers
/// that are synchronised (distributed::synchronise_batch_norm), parts and regions whose policy
/// names batch_norm, add, relu or max_pool2d, gradients of gradients, contiguous planes below 64
/// pixels, and with DEMI_KERNELS=aten. For windows above 255 places, and in contiguous memory for
/// sizes and strides above 8, max_pool2d is LibTorch's.
///
/// An operator of the dispatcher, demi::batch_norm_relu, whose schema says that it writes the
/// running statistics. Throws UsageError in training for one value a channel, or without training
/// and running statistics; c10::Error for shapes that do not fit. Does not synchronise.
DEMI_API at::Tensor batch_norm_relu(const at::Tensor& input, const at::Tensor& weight,
                                    const at::Tensor& bias, const at::Tensor& running_mean,
                                    const at::Tensor& running_var,
                                    const BatchNormRelu& options = {});

}  // namespace demi
