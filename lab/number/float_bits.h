#pragma once

#include <cstdint>

#include "demi/core/dtype.h"
#include "demi/core/export.h"
#include "lab/number/exact_number.h"

// Numbers as the bits of any format, by exact arithmetic: slow, made to explain and to check.
// number.h converts arrays between fp32 and 16 bits.
//
// Bits are at the right end of a word: those of tf32 are its 19, without the 13 zeros below them in
// an fp32 word (storage_bits has those).
namespace demi::number {

using Bits = std::uint64_t;

enum class Kind { kZero, kSubnormal, kNormal, kInfinity, kNaN };

struct Fields {
  Bits sign, exponent, fraction;  // as stored: the exponent with its bias, no leading 1
};

DEMI_API Fields fields_of(const Format& format, Bits bits);
DEMI_API Bits bits_of(const Format& format, const Fields& fields);
DEMI_API Kind kind_of(const Format& format, Bits bits);
/// The bits in a word of Format::bytes bytes, or of 4 bits.
DEMI_API Bits storage_bits(const Format& format, Bits bits);

DEMI_API bool is_negative(const Format& format, Bits bits);
DEMI_API bool is_finite(const Format& format, Bits bits);
DEMI_API Bits with_sign(const Format& format, Bits bits, bool negative);

// Positive ones.
DEMI_API Bits largest_finite(const Format& format);
DEMI_API Bits smallest_normal(const Format& format);
DEMI_API Bits smallest_subnormal(const Format& format);
/// The quiet NaN without payload: 0x7E00 in fp16. In a format without NaN the largest number, as
/// conversion instructions have it (PTX, cvt).
DEMI_API Bits quiet_nan(const Format& format);
/// The result of an overflow: infinity, or NaN if the format has none. (OCP 8-bit floating point
/// specification, section 5.2.1, without saturation, as PyTorch does.) The largest number of a
/// format that has neither.
DEMI_API Bits overflow(const Format& format);
/// Whether x is so far beyond the largest number that it would be rounded to one behind it.
DEMI_API bool is_beyond(const Format& format, const ExactNumber& x);

/// The nearest number of the format, ties to even, subnormals kept: one rounding for any number.
/// IEEE 754-2019, section 4.3.1.
DEMI_API Bits round_to(const Format& format, const ExactNumber& x);

/// The value of finite bits.
DEMI_API ExactNumber value_of(const Format& format, Bits bits);
/// The value as fp64, which holds the numbers of all other formats, infinities and NaN.
DEMI_API double double_of(const Format& format, Bits bits);

/// The next number towards +Inf or -Inf, as nextUp and nextDown of IEEE 754-2019, section 5.3.1. In
/// a format without infinities the largest number is its own next one. Must not be called for NaN.
DEMI_API Bits next_up(const Format& format, Bits bits);
DEMI_API Bits next_down(const Format& format, Bits bits);

/// log2 of the unit in the last place at x: the distance of two numbers of the format around x, if
/// its exponents had no upper limit; below the smallest normal number that of the subnormal ones.
/// (Goldberg 1991, "What every computer scientist should know about floating-point arithmetic".)
DEMI_API std::int64_t log2_ulp(const Format& format, const ExactNumber& x);

/// |value - x| in units in the last place at x: 0 only if they are equal. `bits` are finite.
DEMI_API double error_in_ulp(const Format& format, Bits bits, const ExactNumber& x);

}  // namespace demi::number
