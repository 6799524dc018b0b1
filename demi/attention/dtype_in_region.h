#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace demi::sdpa {

/// The dtype that a region of this thread gives q, k and v of scaled_dot_product_attention; nullopt
/// on a device that demi has no kernel for.
using DtypeInRegion = std::optional<c10::ScalarType> (*)(const at::Tensor& q, const at::Tensor& k,
                                                         const at::Tensor& v);

/// demi/autocast, which knows it, is above this module.
void set_dtype_in_region(DtypeInRegion function);
DtypeInRegion dtype_in_region();

}  // namespace demi::sdpa
