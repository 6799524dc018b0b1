#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"

namespace demi {

/// loss.backward(gradient, retain_graph, create_graph), with an answer where it throws a dtype
/// error.
///
/// Backward runs outside of the region, where no policy casts: a torch::autograd::Function whose
/// backward mixes the FP32 tensors that it saved with the 16-bit gradients that it gets throws
/// there. The error then also names the function, the op and its arguments' dtypes, the dtype that
/// forward ran in, and what cures it. Functions in C++ are observed, and nothing else: an error
/// thrown by a tensor's hook comes back with the cure, without the op. Costs a walk over the graph,
/// and an observer around each C++ function in it. Does not synchronise. Any thread, but not two at
/// once through one graph.
DEMI_API void backward(const at::Tensor& loss, const at::Tensor& gradient = {},
                       std::optional<bool> retain_graph = std::nullopt, bool create_graph = false);

}  // namespace demi
