#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

// A replica's parameter stands for the module's. The members of the replica keep their tensors;
// what these tensors hold is replaced.
namespace demi::distributed {

/// `replica` becomes a view of all of `parameter`: the same memory, its gradient goes to the
/// parameter, and the copies of the parameter in 16 bits serve the replica, too.
DEMI_API void share(const at::Tensor& replica, const at::Tensor& parameter);

/// `replica` becomes `copy`, which was made of `parameter` by an op that passes gradients on. A
/// graph that saved it notices a later write to the parameter, as one that saved the parameter
/// does.
DEMI_API void stand_for(const at::Tensor& replica, const at::Tensor& copy,
                        const at::Tensor& parameter);

}  // namespace demi::distributed
