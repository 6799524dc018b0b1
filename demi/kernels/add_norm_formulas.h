#pragma once

#include "demi/kernels/host_device.h"

// The formulas of add_norm.h for float and for vectors of floats, under the rules of formulas.h.
namespace demi::kernels {
namespace {

/// What a row's elements have in common.
template <class V>
struct NormedRow {
  V mean, inverse;

  DEMI_HOST_DEVICE V normalised(V s) const { return (s - mean) * inverse; }
};

/// The gradient of s through the normalisation; g is that of its result, h the result.
template <class V>
DEMI_HOST_DEVICE V gradient_of_sum(const NormedRow<V>& row, V g, V h, V mean_of_g, V mean_of_gh) {
  return row.inverse * ((g - mean_of_g) - h * mean_of_gh);
}

}  // namespace
}  // namespace demi::kernels
