#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <string>

#include "demi/core/export.h"

namespace demi::imported {

/// The one tensor of a result that `output` names: the value of a dict's key, which is asked first,
/// or the tensor of a number, from 0, in Python's order, where only tensors count. "": the only one
/// that there is. Nothing: there is no such tensor, or several.
DEMI_API std::optional<at::Tensor> find_output(const c10::IValue& result,
                                               const std::string& output);

/// The names that find_output knows of a result, for messages: "logits, rest, 0 to 1".
DEMI_API std::string output_names(const c10::IValue& result);

}  // namespace demi::imported
