#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace demi::weights {

/// The memory that a captured step writes for one parameter in each replay of its graph, without
/// the host's knowledge. Lives as long as the StepTargets that was captured, and holds the copies.
struct CapturedStep {
  const void* parameter;           // its data pointer
  std::vector<at::Tensor> copies;  // one for each dtype
};
using CapturedSteps = std::vector<std::weak_ptr<const CapturedStep>>;

/// The memory in which a copy of `leaf` in `dtype` may lie: any (empty), none (an undefined
/// tensor), or the memory that every captured step over the leaf's data refreshes. A copy in other
/// memory would be out of date after a replay and still count as valid. Forgets steps that are
/// gone. Call with the exclusive lock.
std::optional<at::Tensor> memory_for(CapturedSteps& steps, const at::Tensor& leaf,
                                     c10::ScalarType dtype);

/// Whether the copy has sizes and strides of the leaf, so that a step can write both element by
/// element.
bool fits(const at::Tensor& copy, const at::Tensor& leaf);

}  // namespace demi::weights
