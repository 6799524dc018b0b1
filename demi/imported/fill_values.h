#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <vector>

#include "demi/core/export.h"

namespace demi::imported {

/// Numbers that an operation writes into a tensor (masked_fill, where, clamp, full_like, pad).
/// `torch.finfo(scores.dtype).min` of Python is a number of the exported dtype in the file; in a
/// region the tensor may have another one, which lacks it. Such a number becomes the nearest that
/// the dtype has: its own limit, as Python's code says. Inf stays.
struct DEMI_API FillValues {
  std::vector<std::int32_t> places;  // of the numbers among the operands
  std::int32_t dtype = -1;           // the operand that is the result's dtype; -1: there is none

  void operator()(torch::jit::Stack& operands) const;
};

DEMI_API FillValues fill_values(const c10::FunctionSchema& schema);

}  // namespace demi::imported
