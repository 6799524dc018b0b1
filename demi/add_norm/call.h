#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace demi::add_norm {

/// The arguments of one call. Tensors may be undefined, but for the input.
struct Call {
  at::Tensor input, add, weight, bias;
  bool centered;  // LayerNorm
  double eps;
  at::ScalarType dtype;  // of the normed rows; Undefined: the sum's
};

/// The sum, and the normed rows.
using Results = std::tuple<at::Tensor, at::Tensor>;

/// The call by LibTorch's operators.
Results composed(const Call& call);

/// Whether fused() may compute the call.
bool is_for_kernels(const Call& call);

/// The call by demi's kernels.
Results fused(const Call& call);

}  // namespace demi::add_norm
