#pragma once

#include "demi/kernels/activation.h"
#include "demi/kernels/formulas.h"
#include "demi/kernels/lstm_formulas.h"

// Activations and their slopes for float and for vectors of floats, under the rules of formulas.h.
// Below `kEnd` the share of x is under 1e-37 and is 0 here: the smallest share of exponential()
// would make something of a large negative x. -Inf gives NaN, as LibTorch's kernels do.
namespace demi::kernels {
namespace {

template <Activation which>
constexpr float kEnd = which == Activation::silu   ? 87.0f
                       : which == Activation::gelu ? 13.0f
                                                   : 10.0f;

template <class V>
inline V magnitude_of_value(V x) {
  return maximum(x, -x);
}

/// The normal distribution's share beyond a >= 0, given e^(-a^2/2), within 4e-7 of it: a
/// polynomial in 1 / (1 + 0.34 a), the form of Abramowitz and Stegun 26.2.17, fitted anew to a
/// relative error of 2.5e-8 up to a = 13.2.
template <class V>
inline V normal_tail(V a, V e) {
  const V t = V(1.0f) / (V(1.0f) + V(0.34f) * a);
  V p = V(-0.0265230443f) * t + V(0.14139089f);
  p = p * t + V(-0.276894122f);
  p = p * t + V(0.206305265f);
  p = p * t + V(-0.0474334359f);
  p = p * t + V(0.116455711f);
  p = p * t + V(0.114933223f);
  p = p * t + V(0.136146918f);
  p = p * t + V(0.135618612f);
  return e * (p * t);
}

/// What x is multiplied by, and that factor's own slope.
template <class V>
struct Share {
  V of_x, slope;
};

template <class V>
inline Share<V> share_of_normal(V x) {
  const V a = magnitude_of_value(x), e = exponential(a * a * V(-0.5f)), tail = normal_tail(a, e);
  return {select_less(x, V(0.0f), tail, V(1.0f) - tail), e * V(0.398942280f)};
}

/// sigmoid(u) where `slope_of_u` is u's slope. s (1 - s) is s s e^-u, which does not cancel.
template <class V>
inline Share<V> share_of_sigmoid(V u, V slope_of_u) {
  const V e = exponential(-u), s = V(1.0f) / (V(1.0f) + e);
  return {s, s * (s * e) * slope_of_u};
}

template <Activation which, class V>
inline Share<V> share(V x) {
  if constexpr (which == Activation::gelu) {
    return share_of_normal(x);
  } else if constexpr (which == Activation::silu) {
    return share_of_sigmoid(x, V(1.0f));
  } else {  // 2 sqrt(2 / pi) (x + 0.044715 x^3)
    const V line(1.59576912f), cube = V(0.0713548163f) * (x * x);
    return share_of_sigmoid(x * (line + cube), line + V(3.0f) * cube);
  }
}

template <Activation which, class V>
inline V activated(V x) {
  return x * select_less(x, V(-kEnd<which>), V(0.0f), share<which>(x).of_x);
}

template <Activation which, class V>
inline V activation_slope(V x) {
  const Share<V> s = share<which>(x);
  const V end(kEnd<which>), zero(0.0f),
      inner = select_less(magnitude_of_value(x), end, s.slope, zero);
  return select_less(x, -end, zero, s.of_x) + x * inner;
}

}  // namespace
}  // namespace demi::kernels
