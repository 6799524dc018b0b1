#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <memory>
#include <span>

#include "demi/quantization/recipe.h"

namespace demi {

/// Whether this thread is in a region on the device whose policy has a rule for one of the ops
/// (op_number(), op_table.h).
bool region_has_rule(c10::DeviceType device, std::span<const int> ops);

/// The dtype in which an op runs here on `input` and a parameter: that of the parameter's part, of
/// the region's policy, or as it is given.
c10::ScalarType dtype_in_region(int op, const at::Tensor& input, const at::Tensor& parameter);

/// The recipe by which it multiplies here; null: none.
std::shared_ptr<const quantization::QuantizedWeight> recipe_in_region(int op,
                                                                      const at::Tensor& input,
                                                                      const at::Tensor& parameter);

}  // namespace demi
