#pragma once

#include "demi/kernels/formulas.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/storage.h"

// The formulas of batch normalisation (batch_norm.h) for float and for vectors of floats, under the
// rules of formulas.h.
namespace demi::kernels {
namespace {

// Operations that these formulas need of V besides those of formulas.h. NaN counts as above.
DEMI_HOST_DEVICE float select_not_above(float x, float limit, float yes, float no) {
  return x <= limit ? yes : no;
}
DEMI_HOST_DEVICE float select_equal(float x, float y, float yes, float no) {
  return x == y ? yes : no;
}

/// One channel's numbers.
template <class V>
struct Channel {
  V mean, scale, shift;

  DEMI_HOST_DEVICE V normalised(V x) const { return (x - mean) * scale + shift; }
};

/// The largest FP32 value that is 0 once it is rounded to nearest, ties to even: half of the
/// smallest subnormal.
template <Storage storage>
inline constexpr float kGreatestZero = storage == Storage::fp16   ? 0x1p-25f
                                       : storage == Storage::bf16 ? 0x1p-134f
                                                                  : 0.0f;

template <class V>
DEMI_HOST_DEVICE V rectified(V v) {
  return select_not_above(v, V(0.0f), V(0.0f), v);
}

/// A gradient behind ReLU, whose input was v. NaN passes it on, as torch.relu's backward does.
template <class V>
DEMI_HOST_DEVICE V gradient_behind_relu(V gradient, V v, float greatest_zero) {
  return select_not_above(v, V(greatest_zero), V(0.0f), gradient);
}

/// x where it is finite, otherwise 0.
template <class V>
DEMI_HOST_DEVICE V if_finite(V x) {
  return select_not_above(x * V(0.0f), V(0.0f), x, V(0.0f));
}

/// The greatest value of a window and its place.
template <class V>
struct Greatest {
  V value, place;

  DEMI_HOST_DEVICE void meet(V candidate, float at) {
    const V greater = select_less(value, candidate, V(at), place);
    const V value_then = select_less(value, candidate, candidate, value);
    place = select_not_above(candidate, candidate, greater, V(at));  // only NaN is not
    value = select_not_above(candidate, candidate, value_then, candidate);
  }
};

/// The gradient of x from that of v.
template <class V>
DEMI_HOST_DEVICE V input_gradient(const Channel<V>& channel, V x, V gradient, V mean_gradient,
                                  V slope) {
  return ((gradient - mean_gradient) - (x - channel.mean) * slope) * channel.scale;
}

}  // namespace
}  // namespace demi::kernels
