#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/batch_norm_formulas.h"
#include "demi/kernels/host_device.h"

// One element of the passes of batch_norm.h, for the loops of a CPU and the threads of a device.
// Included after the file that defines get, put and the others (wide_loops.h, cuda/batch_norm.h).
namespace demi::kernels {
namespace {

template <class V, class... Some>
DEMI_HOST_DEVICE Channel<V> channels_at(const BatchNorm& norm, V as, std::int64_t c, Some... some) {
  return {get_float(as, norm.mean, c, some...), get_float(as, norm.scale, c, some...),
          get_float(as, norm.shift, c, some...)};
}
template <class V>
DEMI_HOST_DEVICE Channel<V> channel_of(const BatchNorm& norm, std::int64_t c) {
  return {V(norm.mean[c]), V(norm.scale[c]), V(norm.shift[c])};
}

/// v of input element i.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE V value_at(const BatchNorm& norm, const Channel<V>& channel, std::int64_t i,
                            Some... some) {
  const V as(0.0f);
  const V v = channel.normalised(get<storage>(as, norm.input, i, some...));
  return norm.add ? v + get<storage>(as, norm.add, i, some...) : v;
}

/// Output element i without pooling.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE V output_at(const BatchNorm& norm, const Channel<V>& channel, std::int64_t i,
                             Some... some) {
  const V v = value_at<storage>(norm, channel, i, some...);
  return norm.relu ? rectified(v) : v;
}

/// Writes output element i of a window.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE void put_greatest(const BatchNorm& norm, const Greatest<V>& greatest,
                                   std::int64_t i, Some... some) {
  const V y = norm.relu ? rectified(greatest.value) : greatest.value;
  put<storage>(norm.output, i, y, some...);
  if (!norm.chosen) return;
  const V none(kNoPlace);
  put_byte(norm.chosen, i,
           norm.relu ? select_not_above(y, V(0.0f), none, greatest.place) : greatest.place,
           some...);
}

/// Element i of g, where x is the input's; with pooling what gradient_sums has written behind a
/// sum.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE V gradient_at(const BatchNorm& norm, const Channel<V>& channel, V x,
                               std::int64_t i, Some... some) {
  const V as(0.0f);
  if (norm.pool.any()) return get<storage>(as, norm.add_gradient, i, some...);
  const V gradient = get<storage>(as, norm.output_gradient, i, some...);
  if (!norm.relu) return gradient;
  if (norm.add_gradient)
    return gradient_behind_relu(gradient, get<storage>(as, norm.output, i, some...), 0.0f);
  return gradient_behind_relu(gradient, channel.normalised(x), kGreatestZero<storage>);
}

/// What takes the batch's mean and slope out of a gradient; nothing for given statistics.
template <class V>
struct Correction {
  V mean, slope;
};
template <class V>
DEMI_HOST_DEVICE Correction<V> corrections_of(const BatchNorm& norm, std::int64_t c) {
  if (!norm.mean_gradient) return {V(0.0f), V(0.0f)};
  return {V(norm.mean_gradient[c]), V(norm.slope[c])};
}
template <class V, class... Some>
DEMI_HOST_DEVICE Correction<V> corrections_at(const BatchNorm& norm, V as, std::int64_t c,
                                              Some... some) {
  if (!norm.mean_gradient) return {as, as};
  return {get_float(as, norm.mean_gradient, c, some...), get_float(as, norm.slope, c, some...)};
}

/// Writes the gradient of input element i.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE void put_input_gradient(const BatchNorm& norm, const Channel<V>& channel,
                                         const Correction<V>& correction, V gradient,
                                         std::int64_t i, Some... some) {
  if (!norm.mean_gradient) {
    put<storage>(norm.input_gradient, i, gradient * channel.scale, some...);
    return;
  }
  const V x = get<storage>(V(0.0f), norm.input, i, some...);
  put<storage>(norm.input_gradient, i,
               input_gradient(channel, x, gradient, correction.mean, correction.slope), some...);
}

/// The gradient g at input element i, which gradient_sums may have kept.
template <Storage storage, class V, class... Some>
DEMI_HOST_DEVICE V kept_gradient_at(const BatchNorm& norm, const Channel<V>& channel,
                                    std::int64_t i, Some... some) {
  const V as(0.0f);
  if (norm.add_gradient) return get<storage>(as, norm.add_gradient, i, some...);
  return gradient_at<storage>(norm, channel, get<storage>(as, norm.input, i, some...), i, some...);
}

}  // namespace
}  // namespace demi::kernels
