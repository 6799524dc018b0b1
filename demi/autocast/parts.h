#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>

#include "demi/core/export.h"

// Parameters with a compute dtype of their own (demi::apply), looked up by the kernels.
namespace demi {

inline std::atomic<int> marked_parameters{0};

inline bool parts_in_use() { return marked_parameters.load(std::memory_order_relaxed) != 0; }

/// Ops that take this parameter run in `dtype` from now on, inside any region. Marked again, the
/// last dtype counts. The parameter is held weakly. Any thread.
void mark_part(const at::Tensor& parameter, c10::ScalarType dtype);

/// The parameter follows its region again. Any thread.
void unmark_part(const at::Tensor& parameter);

/// Every op looks its parameters up while there are marks. Each region that is entered removes
/// those of parameters that are gone.
void forget_dead_parts();

DEMI_API int count_marked_parameters();

/// Of this parameter, or of the parameter that it is a view of.
std::optional<c10::ScalarType> dtype_of_part(const at::Tensor& tensor);

}  // namespace demi
