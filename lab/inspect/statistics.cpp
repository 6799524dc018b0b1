#include "lab/inspect/statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace demi::inspect {
namespace {

/// Count, mean and sum of squared deviations of what has been seen. Parts are joined by the
/// pairwise formula of Chan, Golub and LeVeque 1983, "Algorithms for computing the sample
/// variance", (2.1).
struct Moments {
  int64_t count = 0;
  double mean = 0, squares = 0;

  void join(const Moments& other) {
    if (other.count == 0) return;
    const auto n = static_cast<double>(count), m = static_cast<double>(other.count);
    const double delta = other.mean - mean;
    mean += delta * (m / (n + m));
    squares += other.squares + delta * delta * (n * m / (n + m));
    count += other.count;
  }
};

Moments moments_of(std::span<const double> values) {
  Moments moments;
  double sum = 0;
  for (const double value : values)
    if (std::isfinite(value)) {
      sum += value;
      ++moments.count;
    }
  if (moments.count == 0) return moments;
  moments.mean = sum / static_cast<double>(moments.count);
  for (const double value : values)
    if (std::isfinite(value)) moments.squares += (value - moments.mean) * (value - moments.mean);
  return moments;
}

}  // namespace

at::Tensor as_doubles(const at::Tensor& values) {
  return (values.is_complex() ? at::view_as_real(values).flatten() : values).to(at::kDouble);
}

Statistics statistics(const checkpoint::StoredTensor& tensor) {
  Statistics found;
  Moments moments;
  double least = std::numeric_limits<double>::infinity(), greatest = -least;
  checkpoint::StoredValues stored(tensor);
  for (at::Tensor part = stored.next(); part.defined(); part = stored.next()) {
    const at::Tensor doubles = as_doubles(part);
    const std::span<const double> values(doubles.const_data_ptr<double>(),
                                         static_cast<std::size_t>(doubles.numel()));
    found.values += doubles.numel();
    for (const double value : values) {
      found.zeros += value == 0;
      found.nan += std::isnan(value);
      found.infinite += std::isinf(value);
      if (!std::isfinite(value)) continue;
      least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
    moments.join(moments_of(values));
  }
  if (moments.count > 0) {
    found.min = least;
    found.max = greatest;
    found.mean = moments.mean;
  }
  if (moments.count > 1)
    found.std = std::sqrt(moments.squares / static_cast<double>(moments.count - 1));
  return found;
}

}  // namespace demi::inspect
