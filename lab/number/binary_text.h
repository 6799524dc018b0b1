#pragma once

#include <cstdint>
#include <string>

#include "lab/number/exact_number.h"
#include "lab/number/float_bits.h"

namespace demi::number {

// Numbers that are not 0 in base 2, without their sign.

/// "100111010.101". "" if that takes many digits.
std::string positional_text(const ExactNumber& x);

/// "1.00111010101 × 2^8", with "..." after some digits more than `digits` if there are more.
std::string normalised_text(const ExactNumber& x, int digits);

/// The part that was cut off, in units of the last digit that was kept.
enum class Rest { kNone, kLess, kHalf, kMore };

/// A normalised number cut after some digits.
struct CutNumber {
  std::int64_t magnitude;  // the exponent: 8
  std::string kept;        // "1.0011"
  std::string dropped;     // "1010101", or some of its digits and "..."
  Rest rest;
};
CutNumber cut_after(const ExactNumber& x, int digits);

}  // namespace demi::number
