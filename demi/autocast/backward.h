#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// Calls loss.backward(gradient, retain_graph, create_graph, inputs) and explains a dtype error
/// that it throws. `inputs`: the only tensors that get gradients; empty: all that require one.
///
/// Backward runs outside of the region, where nothing is cast. A torch::autograd::Function whose
/// backward mixes saved FP32 tensors with 16-bit gradients throws there. The error then also names
/// the function, the op and its arguments' dtypes, the dtype that forward ran in, and the cure.
/// Only C++ functions are observed: an error thrown by a tensor's hook gets the cure, but not the
/// op. Costs a walk over the graph, and an observer around each C++ function in it. Does not
/// synchronise. Any thread, but not two at once through one graph.
DEMI_API void backward(const at::Tensor& loss, const at::Tensor& gradient = {},
                       std::optional<bool> retain_graph = std::nullopt, bool create_graph = false,
                       const std::vector<at::Tensor>& inputs = {});

}  // namespace demi
