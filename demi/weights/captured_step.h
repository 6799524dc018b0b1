#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace demi::weights {

/// What a captured step writes for one parameter whenever its graph is replayed, of which the host
/// learns nothing. Lives as long as the StepTargets that was captured, and holds the copies' memory
/// with it.
struct CapturedStep {
  const void* parameter;           // data
  std::vector<at::Tensor> copies;  // of one dtype each
};
using CapturedSteps = std::vector<std::weak_ptr<const CapturedStep>>;

/// Where a copy of `leaf` in `dtype` may be: anywhere (empty), nowhere (undefined), or in the
/// memory that every captured step over the leaf's data refreshes. Any other memory would be out of
/// date after a replay, and count as valid. Forgets the steps that are gone. Exclusive lock.
std::optional<at::Tensor> memory_for(CapturedSteps& steps, const at::Tensor& leaf,
                                     c10::ScalarType dtype);

/// Sizes and strides of the leaf: a step may write it element by element.
bool fits(const at::Tensor& copy, const at::Tensor& leaf);

}  // namespace demi::weights
