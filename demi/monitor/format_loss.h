#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "demi/core/export.h"
#include "demi/monitor/exponent_histogram.h"

namespace demi::monitor {

/// The effect of rounding FP32 numbers to fp16 or bf16.
struct DEMI_API FormatLoss {
  std::int64_t elements = 0;    // numbers that were looked at
  std::int64_t zeros = 0;       // before
  std::int64_t overflowed = 0;  // finite before, Inf after
  std::int64_t flushed = 0;     // not 0 before, 0 after
  std::int64_t subnormal = 0;   // below the format's normal range after, where digits are missing
  double greatest = 0;          // magnitude before, of the finite ones
  int least_exponent = 0;       // 2^least_exponent <= the least magnitude above 0, if there is one
  double energy = 0;            // sum of squares before, estimated from powers of two
  double flushed_energy = 0;    // of the flushed ones
  std::int64_t first_overflow = 0;  // step; 0: none

  /// The share of the L2 norm that is flushed: 1 if nothing is left.
  double lost() const;
  /// Whether any number overflows, is flushed or becomes subnormal.
  bool harms() const { return overflowed > 0 || flushed > 0 || subnormal > 0; }
  /// Adds the numbers of a later step.
  FormatLoss& operator+=(const FormatLoss& later);
};

/// The magnitude from which on rounding to fp16 or bf16 gives Inf: 65520 of fp16, halfway between
/// its greatest number and the next power of two.
DEMI_API double overflow_threshold(c10::ScalarType format);

/// The loss of numbers that were counted before and after the rounding; exact.
DEMI_API FormatLoss format_loss(const ExponentHistogram& before, const ExponentHistogram& after,
                                double greatest, c10::ScalarType format);

/// The loss of numbers times a scale, by powers of two: a scale that is no power of two counts as
/// the nearest one; 2^-25, which fp16 rounds to 0, counts as kept; in the bin that holds the
/// overflow threshold one number counts as overflowed if `greatest` reaches it.
DEMI_API FormatLoss format_loss(const ExponentHistogram& plain, double scale, double greatest,
                                c10::ScalarType format);

/// `begin`, halved until greatest times it does not overflow, but not below 1.
DEMI_API double fitting_scale(double begin, double greatest, c10::ScalarType format);

}  // namespace demi::monitor
