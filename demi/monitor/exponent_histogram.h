#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "demi/core/export.h"

namespace demi::monitor {

/// Counts of numbers by power of two: the histogram of Micikevicius et al. 2018, "Mixed precision
/// training", figure 3. Counts are exact.
struct DEMI_API ExponentHistogram {
  static constexpr int kLowest = -149;  // fp32's smallest subnormal number is 2^-149
  static constexpr int kHighest = 127;  // its largest number is below 2^128
  static constexpr int kBins = kHighest - kLowest + 1;  // one for each power of two

  /// counts[i]: finite x with 2^e <= |x| < 2^(e+1), e = kLowest + i. The first and the last also
  /// count what is beyond them, in fp64 or once shifted.
  std::array<std::int64_t, kBins> counts{};
  std::int64_t zeros = 0;       // exact ones, of either sign
  std::int64_t subnormals = 0;  // of the dtype that each number was stored in; in `counts`, too
  /// Counts of infinite and of NaN numbers.
  std::int64_t infinities = 0, nans = 0;
  double sum_of_squares = 0;  // of the finite numbers

  /// Count of all numbers.
  std::int64_t elements() const;
  /// L2 norm of the finite numbers.
  double norm() const;
  /// Numbers with 0 < |x| < 2^exponent.
  std::int64_t below(int exponent) const;
  /// Finite numbers with |x| >= 2^exponent.
  std::int64_t from(int exponent) const;
  /// The histogram of x * 2^exponents, if no such product over- or underflows.
  ExponentHistogram shifted(int exponents) const;

  /// Adds the counts of another histogram.
  ExponentHistogram& operator+=(const ExponentHistogram& other);
  bool operator==(const ExponentHistogram&) const = default;
};

/// Counts the numbers of tensors of one device, which it keeps there until they are read. On a CPU
/// one pass over each tensor, split over at::parallel_for. Elsewhere a few tensor operations, in
/// pieces of 2^23 elements.
class DEMI_API ExponentCounter {
 public:
  /// Adds the numbers of a tensor: fp32, fp16, bf16 or fp64, any layout; of a sparse one, the
  /// values that it holds. Throws UsageError for other dtypes. Does not synchronise.
  void add(const at::Tensor& numbers);

  /// Waits for the device.
  ExponentHistogram read() const;
  /// Several with one copy from each device.
  static std::vector<ExponentHistogram> read(std::span<const ExponentCounter> counters);

 private:
  friend struct CounterTesting;
  void add_on_cpu(const at::Tensor& dense);
  void add_by_ops(const at::Tensor& numbers);

  at::Tensor counts_;   // int64, (kBins + 4): bins, zeros, subnormals, infinities, NaN
  at::Tensor squares_;  // fp64, (1)
};

/// The histogram of one tensor of fp32, fp16, bf16 or fp64. Waits for the device. Throws UsageError
/// for another dtype.
DEMI_API ExponentHistogram exponent_histogram(const at::Tensor& numbers);

}  // namespace demi::monitor
