#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>

#include "demi/core/export.h"

// Parameters with a compute dtype of their own (demi::apply), looked up by the kernels.
namespace demi {

inline std::atomic<int> marked_parameters{0};

inline bool parts_in_use() { return marked_parameters.load(std::memory_order_relaxed) != 0; }

/// Ops that take this parameter run in `dtype` from now on, inside any region, and so do those that
/// take a copy which Module::clone() makes of it. If it is marked twice, the last dtype counts.
/// Holds the parameter weakly. Any thread.
void mark_part(const at::Tensor& parameter, c10::ScalarType dtype);

/// The parameter follows its region again. Any thread.
void unmark_part(const at::Tensor& parameter);

/// Removes the marks of parameters that no longer exist. Each region that is entered calls it,
/// because every op looks its arguments up while there are marks.
void forget_dead_parts();

/// Marked parameters and copies of such that are alive.
DEMI_API int count_marked_parameters();

/// The dtype of a marked parameter, of a copy or of a view of one. Empty for other tensors.
std::optional<c10::ScalarType> dtype_of_part(const at::Tensor& tensor);

}  // namespace demi
