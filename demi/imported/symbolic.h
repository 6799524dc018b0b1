#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "demi/core/export.h"

namespace demi::imported {

// Python's integer arithmetic. Nothing: a division by zero, or a result beyond 64 bits.
DEMI_API std::optional<std::int64_t> floor_divide(std::int64_t a, std::int64_t b);
DEMI_API std::optional<std::int64_t> python_mod(std::int64_t a, std::int64_t b);
DEMI_API std::optional<std::int64_t> integer_power(std::int64_t base, std::int64_t exponent);

/// A function of Python numbers, which shapes are computed with. Takes and returns int, double or
/// bool. Nothing: it has no result for these.
using SymbolicFunction = std::optional<c10::IValue> (*)(c10::ArrayRef<c10::IValue> arguments);

/// The function of a target ("_operator.floordiv", "math.ceil"); null if it is no symbolic
/// function.
DEMI_API SymbolicFunction symbolic_function(std::string_view target);

}  // namespace demi::imported
