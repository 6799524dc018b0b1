#pragma once

#include <string>

#include "demi/core/export.h"
#include "lab/profiler/event.h"

namespace demi::profiler {

/// Whether an op of that name brings its arguments to the dtype that they have in common, as those
/// do that LibTorch tags as pointwise: "aten::add", "aten::mul_".
DEMI_API bool promotes(const std::string& op);

/// The dtype that the floating point arguments have in common, by LibTorch's type promotion
/// (https://pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc): the widest of those
/// with a dimension, else the widest of all; fp32 of fp16 and bf16. "" without one.
DEMI_API std::string promoted(const Event& event);

}  // namespace demi::profiler
