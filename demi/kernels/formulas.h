#pragma once

#include <cmath>
#include <cstdint>

#include "demi/kernels/host_device.h"
#include "demi/kernels/step_table.h"

// What the update formulas (rules/NAME.h) are made of, each written once. V is float (reference,
// SIMD tails, CUDA) or a vector of floats of one instruction set; every operation is an FP32
// operation rounded to nearest, in the order in which PyTorch's optimizers (torch/optim, single
// tensor forms) perform it. FMA appears nowhere: files that include this are compiled with
// -ffp-contract=off and --fmad=false, so all paths agree bit by bit (NaN payloads aside).
//
// Unnamed namespace on purpose: with external linkage the linker would keep one instruction set's
// copy for all.
namespace demi::kernels {
namespace {

// The operations that the formulas need of V besides + - * / and unary minus, for float. Vector
// types bring their own.
DEMI_HOST_DEVICE float square_root(float x) { return sqrtf(x); }
DEMI_HOST_DEVICE float maximum(float a, float b) {
  return (b != b || a < b) ? b : a;
}  // NaN wins, as torch.maximum
DEMI_HOST_DEVICE float sign(float x) {
  return (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f);
}  // NaN gives 0
DEMI_HOST_DEVICE float clamp(float x, float limit) {
  return x < -limit ? -limit : x > limit ? limit : x;
}  // NaN stays

DEMI_HOST_DEVICE float select_less(float x, float limit, float yes, float no) {
  return x < limit ? yes : no;
}

/// One element (or vector of elements) of everything that an update reads and writes.
template <class V>
struct Elements {
  V parameter;
  V gradient;
  V moment[3];
  V direction;  // of a rule of matrices
};

template <class V>
DEMI_HOST_DEVICE V reciprocal(V x) {
  return V(1.0f) / x;
}

/// start + weight (end - start), in the form of torch.lerp, which is exact at both ends.
template <class V>
DEMI_HOST_DEVICE V lerp(V start, V end, float weight) {
  if (weight < 0.5f) return start + V(weight) * (end - start);
  return end - (end - start) * V(1.0f - weight);
}

/// The true gradient from the one that backward left: GradScaler's unscaling, then clip_grad_norm_,
/// then clip_grad_value_, each rounded as when written out. Multiplication by 1 is exact, so
/// there are no branches for it.
template <class V>
DEMI_HOST_DEVICE V true_gradient(V scaled, float inverse_scale, float clip_factor,
                                 const Coefficients& c) {
  V gradient = scaled * V(inverse_scale) * V(clip_factor) * V(c.factor);
  if (c.flags & kLimited) gradient = clamp(gradient, V(c.limit));
  if (c.flags & kMaximize) gradient = -gradient;
  return gradient;
}

/// 1 - beta^t, the bias correction of Kingma and Ba 2015.
DEMI_HOST_DEVICE double correction(double beta, std::int64_t t) {
  return 1.0 - pow(beta, static_cast<double>(t));
}

/// Bias corrections of both moments, rounded once.
DEMI_HOST_DEVICE void set_corrections(Coefficients& c, const Group& group, std::int64_t t) {
  const double correction2 = correction(group.beta2, t);
  c.inverse_correction1 = static_cast<float>(1.0 / correction(group.beta1, t));
  c.inverse_correction2 = static_cast<float>(1.0 / correction2);
  c.root_bias_correction2 = static_cast<float>(sqrt(correction2));
}

/// What a parameter shrinks by where weight decay is decoupled (Loshchilov and Hutter 2019).
DEMI_HOST_DEVICE float decoupled_decay(const Group& group, double rate) {
  return static_cast<float>(1.0 - rate * group.weight_decay);
}

}  // namespace
}  // namespace demi::kernels
