#pragma once

#include <optional>

#include "demi/core/export.h"
#include "lab/number/exact_number.h"
#include "lab/number/float_bits.h"

namespace demi::number {

enum class Operation : char { kAdd = '+', kSubtract = '-', kMultiply = '*', kDivide = '/' };

struct Result {
  Bits bits = 0;
  std::optional<ExactNumber> exact;  // before the one rounding; none if it is no finite number
};

/// The result of an operation on two numbers of a format, computed exactly and rounded once, with
/// infinities, NaN and signed zeros as in IEEE 754-2019, sections 6 and 7. A result that is NaN has
/// no payload.
DEMI_API Result apply(const Format& format, Operation operation, Bits a, Bits b);

/// The operation on exact numbers. None if it is a division by 0.
DEMI_API std::optional<ExactNumber> apply(Operation operation, const ExactNumber& a,
                                          const ExactNumber& b);

}  // namespace demi::number
