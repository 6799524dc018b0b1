#pragma once

#include <cstdint>

#include "demi/kernels/storage.h"

namespace demi::kernels {

/// The exponents of fp32 and of the 16-bit formats, subnormal numbers included: 2^-149 is fp32's
/// smallest subnormal number, its largest number is below 2^128.
inline constexpr int kLowestExponent = -149, kHighestExponent = 127;
inline constexpr int kExponents = kHighestExponent - kLowestExponent + 1;
/// The squares of elements begin + i, begin + i + kExponentLanes, ... are summed in one lane.
inline constexpr int kExponentLanes = 16;

/// What kinds of numbers an array holds.
struct ExponentCounts {
  /// of_exponent[i]: finite x with 2^e <= |x| < 2^(e+1), e = kLowestExponent + i.
  std::int64_t of_exponent[kExponents] = {};
  std::int64_t zeros = 0, infinities = 0, nans = 0;
  double sum_of_squares = 0;  // of the finite numbers
};

/// Counts the elements [begin, end), and adds them to `to`. By their bits: the processor's modes
/// for subnormal numbers change no count. Squares are summed in FP64, in lanes that are then added
/// from the first to the last. Takes the path that path_for(Device::cpu) chooses; all give the
/// same.
void count_exponents(Storage storage, const void* data, std::int64_t begin, std::int64_t end,
                     ExponentCounts& to);
/// fp64: the first and the last exponent also count what lies beyond them.
void count_exponents(const double* data, std::int64_t begin, std::int64_t end, ExponentCounts& to);

}  // namespace demi::kernels
