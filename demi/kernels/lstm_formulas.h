#pragma once

#include <bit>
#include <cstdint>

#include "demi/kernels/formulas.h"

// The formulas of an LSTM cell for float and for vectors of floats, under the rules of formulas.h:
// no FMA, so that all paths agree bit by bit.
namespace demi::kernels {
namespace {

/// 2^n of a float 1.5 * 2^23 + n, -126 <= n <= 127: its low bits hold n.
inline float power_of_two(float shifted) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3F800000u);
}

/// e^x within 2 units in the last place for |x| <= 87.3, beyond that of the limit; NaN stays. Cody
/// and Waite's reduction and the polynomial of expf in S. Moshier's Cephes library.
template <class V>
inline V exponential(V x) {
  x = clamp(x, V(87.3f));
  const V shifted = x * V(1.44269504f) + V(12582912.0f), n = shifted - V(12582912.0f);
  const V r = x - n * V(0.693359375f) - n * V(-2.12194440e-4f);
  V p = V(1.9875691500e-4f) * r + V(1.3981999507e-3f);
  p = p * r + V(8.3334519073e-3f);
  p = p * r + V(4.1665795894e-2f);
  p = p * r + V(1.6666665459e-1f);
  p = p * r + V(5.0000001201e-1f);
  return (p * r * r + r + V(1.0f)) * power_of_two(shifted);
}

template <class V>
inline V sigmoid(V x) {
  return V(1.0f) / (V(1.0f) + exponential(-x));
}

/// tanhf of the Cephes library: a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
template <class V>
inline V hyperbolic_tangent(V x) {
  const V magnitude = maximum(x, -x), square = x * x;
  V p = V(-5.70498872745e-3f) * square + V(2.06390887954e-2f);
  p = p * square + V(-5.37397155531e-2f);
  p = p * square + V(1.33314422036e-1f);
  p = p * square + V(-3.33332819422e-1f);
  const V near = p * square * x + x;
  const V far = sign(x) * (V(1.0f) - V(2.0f) / (exponential(magnitude + magnitude) + V(1.0f)));
  return select_less(magnitude, V(0.625f), near, far);
}

template <class V>
struct Gates {
  V input, forget, candidate, output;
};

/// Gates from their sums, in place; returns c.
template <class V>
inline V lstm_cell(Gates<V>& gates, V cell_before) {
  gates.input = sigmoid(gates.input);
  gates.forget = sigmoid(gates.forget);
  gates.candidate = hyperbolic_tangent(gates.candidate);
  gates.output = sigmoid(gates.output);
  return gates.forget * cell_before + gates.input * gates.candidate;
}

template <class V>
inline V lstm_output(const Gates<V>& gates, V cell) {
  return gates.output * hyperbolic_tangent(cell);
}

/// Gradients of the gates' sums from those of h and c; cell_gradient becomes that of c_before.
template <class V>
inline Gates<V> lstm_gradients(const Gates<V>& gates, V cell_before, V cell, V output_gradient,
                               V& cell_gradient) {
  const V one(1.0f), tanh_cell = hyperbolic_tangent(cell);
  const V of_cell = cell_gradient + output_gradient * gates.output * (one - tanh_cell * tanh_cell);
  cell_gradient = of_cell * gates.forget;
  return {of_cell * gates.candidate * gates.input * (one - gates.input),
          of_cell * cell_before * gates.forget * (one - gates.forget),
          of_cell * gates.input * (one - gates.candidate * gates.candidate),
          output_gradient * tanh_cell * gates.output * (one - gates.output)};
}

}  // namespace
}  // namespace demi::kernels
