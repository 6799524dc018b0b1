#pragma once

#include "demi/core/export.h"
#include "lab/profiler/event.h"

namespace demi::profiler {

/// Floating point operations of a product or convolution, from the shapes of its arguments; a
/// multiplication and its addition are two. 0 for all other ops, and where shapes were not
/// recorded.
///
///     (m, k) by (k, n)                                      2 m k n       mm, addmm, linear
///     batches of them                                       2 b m k n     bmm, baddbmm
///     convolution to (N, K, spatial...) from C channels     2 N K C / groups x kernel x spatial
///     its gradients of input and of weight                  as much for each that is asked for
DEMI_API double flops_of(const Event& event);

}  // namespace demi::profiler
