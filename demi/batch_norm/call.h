#pragma once

#include <ATen/core/Tensor.h>

#include "demi/batch_norm/batch_norm.h"
#include "demi/batch_norm/engine.h"
#include "demi/core/export.h"

namespace demi::batch_norm {

/// The arguments of one call of demi::batch_norm_relu. Tensors may be undefined, but for the input.
struct Call {
  at::Tensor input, weight, bias, running_mean, running_var;
  BatchNormRelu options;

  bool pools() const { return options.pool != MaxPooling{}; }
};

/// The call by LibTorch's operators.
at::Tensor composed(const Call& call);

/// Whether the region's policy, or one of demi::apply, names one of the operators.
bool has_rules(const Call& call);

/// Whether the kernels take the tensor's channels as the last dimension.
bool is_channels_last(const at::Tensor& x);
/// What computes the call, but for its pooling.
Engine engine_for(const Call& call);
/// Whether the pooling belongs to it.
bool pools_by_kernels(const Call& call);
/// Whether the environment's DEMI_BATCH_NORM, read at each call, wants CUDA's kernels. Throws
/// UsageError for a value that is not known.
bool wants_cuda_kernels();

/// The call by kernels.
DEMI_API at::Tensor fused(const Call& call, const Engine& engine);

}  // namespace demi::batch_norm
