#include "demi/monitor/format_loss.h"

#include <algorithm>
#include <cmath>

#include "demi/core/dtype.h"

namespace demi::monitor {
namespace {

const Format& fields_of(c10::ScalarType format) {
  return format_of(format == c10::ScalarType::Half ? Dtype::fp16 : Dtype::bf16);
}

int least_normal_exponent(c10::ScalarType format) { return 1 - fields_of(format).bias; }

// Numbers below 2^this become 0: half of the least subnormal number.
int flush_exponent(c10::ScalarType format) {
  return least_normal_exponent(format) - fields_of(format).fraction_bits - 1;
}

// The mean of x^2 over [1, 2) is 7/3.
double energy_of(const ExponentHistogram& numbers, int below) {
  double sum = 0;
  for (int e = ExponentHistogram::kLowest; e <= ExponentHistogram::kHighest && e < below; ++e) {
    const auto count = numbers.counts[static_cast<std::size_t>(e - ExponentHistogram::kLowest)];
    if (count > 0) sum += static_cast<double>(count) * std::ldexp(7.0 / 3, 2 * e);
  }
  return sum;
}

int least_exponent(const ExponentHistogram& numbers) {
  for (int e = ExponentHistogram::kLowest; e <= ExponentHistogram::kHighest; ++e)
    if (numbers.counts[static_cast<std::size_t>(e - ExponentHistogram::kLowest)] > 0) return e;
  return 0;
}

FormatLoss known_of(const ExponentHistogram& numbers, double greatest) {
  return {.elements = numbers.elements(),
          .zeros = numbers.zeros,
          .greatest = greatest,
          .least_exponent = least_exponent(numbers),
          .energy = energy_of(numbers, ExponentHistogram::kHighest + 1)};
}

}  // namespace

double FormatLoss::lost() const { return energy > 0 ? std::sqrt(flushed_energy / energy) : 0; }

FormatLoss& FormatLoss::operator+=(const FormatLoss& later) {
  const bool had_numbers = energy > 0, has_numbers = later.energy > 0;
  if (has_numbers)
    least_exponent =
        had_numbers ? std::min(least_exponent, later.least_exponent) : later.least_exponent;
  elements += later.elements;
  zeros += later.zeros;
  overflowed += later.overflowed;
  flushed += later.flushed;
  subnormal += later.subnormal;
  greatest = std::max(greatest, later.greatest);
  energy += later.energy;
  flushed_energy += later.flushed_energy;
  if (first_overflow == 0) first_overflow = later.first_overflow;
  return *this;
}

double overflow_threshold(c10::ScalarType format) {
  const Format& f = fields_of(format);
  return std::ldexp(2 - std::ldexp(1.0, -f.fraction_bits - 1), f.bias);
}

FormatLoss format_loss(const ExponentHistogram& before, const ExponentHistogram& after,
                       double greatest, c10::ScalarType format) {
  FormatLoss loss = known_of(before, greatest);
  loss.overflowed = after.infinities - before.infinities;
  loss.flushed = after.zeros - before.zeros;
  loss.subnormal = after.subnormals;
  if (loss.flushed > 0) loss.flushed_energy = energy_of(before, flush_exponent(format));
  return loss;
}

FormatLoss format_loss(const ExponentHistogram& plain, double scale, double greatest,
                       c10::ScalarType format) {
  const auto shift = static_cast<int>(std::lround(std::log2(scale)));
  FormatLoss loss = known_of(plain, greatest * scale);
  loss.least_exponent += shift;
  const int flushed = flush_exponent(format) - shift, bias = fields_of(format).bias;
  loss.flushed = plain.below(flushed);
  loss.subnormal = plain.below(least_normal_exponent(format) - shift) - loss.flushed;
  loss.flushed_energy = energy_of(plain, flushed);
  loss.overflowed = plain.from(bias + 1 - shift);
  if (loss.overflowed == 0 && loss.greatest >= overflow_threshold(format)) loss.overflowed = 1;
  return loss;
}

double fitting_scale(double begin, double greatest, c10::ScalarType format) {
  const double threshold = overflow_threshold(format);
  double scale = begin;
  while (scale > 1 && greatest * scale >= threshold) scale = std::max(1.0, scale / 2);
  return scale;
}

}  // namespace demi::monitor
