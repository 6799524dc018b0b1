#pragma once

#include "demi/kernels/formulas.h"
#include "demi/kernels/lstm_formulas.h"

// GELU by tanh (Hendrycks and Gimpel 2016, section 2) for float and for vectors of floats, under
// the rules of formulas.h: x s(u), u = 2 sqrt(2 / pi) (x + 0.044715 x^3), where s is the sigmoid,
// since (1 + tanh(u / 2)) / 2 = s(u). Below -10 the share s is under 1e-37 and is 0 here: the
// smallest value of exponential() would make something of a large negative x. -Inf gives NaN, as
// LibTorch's kernel does.
namespace demi::kernels {
namespace {

inline constexpr float kGeluEnd = 10.0f;

/// s(u), and its slope by x. s (1 - s) is s s e^-u, which does not cancel.
template <class V>
struct GeluShare {
  V share, slope;

  explicit GeluShare(V x) {
    const V line(1.59576912f), cube = V(0.0713548163f) * (x * x);
    const V e = exponential(-(x * (line + cube)));
    share = V(1.0f) / (V(1.0f) + e);
    slope = share * (share * e) * (line + V(3.0f) * cube);
  }
};

template <class V>
inline V gelu_of(V x) {
  return x * select_less(x, V(-kGeluEnd), V(0.0f), GeluShare<V>(x).share);
}

template <class V>
inline V gelu_slope(V x) {
  const GeluShare<V> s(x);
  const V end(kGeluEnd), zero(0.0f);
  return select_less(x, -end, zero, s.share) + x * select_less(maximum(x, -x), end, s.slope, zero);
}

}  // namespace
}  // namespace demi::kernels
