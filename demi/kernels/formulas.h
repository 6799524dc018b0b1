#pragma once

#include <cmath>
#include <cstdint>

#include "demi/kernels/host_device.h"
#include "demi/kernels/step_table.h"

// The update formulas, each written once. V is float (reference, SIMD tails, CUDA) or a vector of
// floats of one instruction set; every operation is an FP32 operation rounded to nearest, in the
// order in which PyTorch's optimizers (torch/optim, single tensor forms) perform it. FMA appears
// nowhere: files that include this are compiled with -ffp-contract=off and --fmad=false, so all
// paths agree bit by bit (NaN payloads aside).
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

/// One element (or vector of elements) of everything that an update reads and writes.
template <class V>
struct Elements {
  V parameter;
  V gradient;
  V moment[3];
};

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

/// torch.optim.SGD: Sutskever et al. 2013, "On the importance of initialization and momentum in
/// deep learning", with dampening; the first step puts the gradient itself into the momentum
/// buffer.
template <class V>
DEMI_HOST_DEVICE void sgd(Elements<V>& e, const Coefficients& c) {
  V gradient = e.gradient;
  if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
  if (c.flags & kMomentum) {
    V& buffer = e.moment[0];
    if (c.flags & kFirst) {
      buffer = gradient;
    } else {
      buffer = buffer * V(c.momentum) + V(c.one_minus_dampening) * gradient;
    }
    gradient = (c.flags & kNesterov) ? gradient + V(c.momentum) * buffer : buffer;
  }
  e.parameter = e.parameter + V(c.negative_rate) * gradient;
}

/// Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1, from the
/// (decayed) gradient on; amsgrad: Reddi et al. 2018, "On the convergence of Adam and beyond",
/// algorithm 2, as torch.optim.Adam does it.
template <class V>
DEMI_HOST_DEVICE void adam_moments_and_move(Elements<V>& e, V gradient, const Coefficients& c) {
  e.moment[0] = lerp(e.moment[0], gradient, c.one_minus_beta1);
  e.moment[1] = e.moment[1] * V(c.beta2) + V(c.one_minus_beta2) * gradient * gradient;
  V second = e.moment[1];
  if (c.flags & kAmsgrad) second = e.moment[2] = maximum(e.moment[2], e.moment[1]);
  const V denominator = square_root(second) / V(c.root_bias_correction2) + V(c.epsilon);
  e.parameter = e.parameter + V(c.negative_rate) * e.moment[0] / denominator;
}

/// Adam with L2 regularisation: the decay is part of the gradient.
template <class V>
DEMI_HOST_DEVICE void adam(Elements<V>& e, const Coefficients& c) {
  V gradient = e.gradient;
  if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
  adam_moments_and_move(e, gradient, c);
}

/// Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2 with the
/// schedule inside lr, as torch.optim.AdamW.
template <class V>
DEMI_HOST_DEVICE void adamw(Elements<V>& e, const Coefficients& c) {
  if (c.flags & kDecay) e.parameter = e.parameter * V(c.decay);
  adam_moments_and_move(e, e.gradient, c);
}

/// You et al. 2020, "Large batch optimization for deep learning: training BERT in 76 minutes",
/// algorithm 2: the moments (pass 2) ...
template <class V>
DEMI_HOST_DEVICE void lamb_moments(Elements<V>& e, const Coefficients& c) {
  e.moment[0] = e.moment[0] * V(c.beta1) + V(c.one_minus_beta1) * e.gradient;
  e.moment[1] = e.moment[1] * V(c.beta2) + V(c.one_minus_beta2) * e.gradient * e.gradient;
}

/// ... and the update r + lambda x, of which pass 2 takes the norm and pass 3 a multiple.
template <class V>
DEMI_HOST_DEVICE V lamb_update(const Elements<V>& e, const Coefficients& c) {
  const V first = e.moment[0] * V(c.inverse_correction1);
  const V second = e.moment[1] * V(c.inverse_correction2);
  V update = first / (square_root(second) + V(c.epsilon));
  if (c.flags & kDecay) update = update + V(c.decay) * e.parameter;
  return update;
}

/// Pass 3; negative_rate is -lr × trust ratio.
template <class V>
DEMI_HOST_DEVICE void lamb_apply(Elements<V>& e, const Coefficients& c) {
  e.parameter = e.parameter + V(c.negative_rate) * lamb_update(e, c);
}

/// Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2, in the order of
/// the authors' PyTorch code.
template <class V>
DEMI_HOST_DEVICE void lion(Elements<V>& e, const Coefficients& c) {
  if (c.flags & kDecay) e.parameter = e.parameter * V(c.decay);
  const V update = e.moment[0] * V(c.beta1) + V(c.one_minus_beta1) * e.gradient;
  e.parameter = e.parameter + V(c.negative_rate) * sign(update);
  e.moment[0] = e.moment[0] * V(c.beta2) + V(c.one_minus_beta2) * e.gradient;
}

/// Exponential moving average of the weights: `gradient` is the weight, negative_rate is 1 - decay.
template <class V>
DEMI_HOST_DEVICE void ema(Elements<V>& e, const Coefficients& c) {
  e.parameter = lerp(e.parameter, e.gradient, c.negative_rate);
}

/// Pass 2 of any rule. LAMB moves no parameter in it.
template <UpdateRule rule, class V>
DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
  if constexpr (rule == UpdateRule::sgd) sgd(e, c);
  if constexpr (rule == UpdateRule::adam) adam(e, c);
  if constexpr (rule == UpdateRule::adamw) adamw(e, c);
  if constexpr (rule == UpdateRule::lamb) lamb_moments(e, c);
  if constexpr (rule == UpdateRule::lion) lion(e, c);
  if constexpr (rule == UpdateRule::ema) ema(e, c);
}

/// call.template operator()<rule>(), with the rule as a constant.
template <class Call>
inline void with_rule(UpdateRule rule, Call call) {
  switch (rule) {
    case UpdateRule::sgd:
      return call.template operator()<UpdateRule::sgd>();
    case UpdateRule::adam:
      return call.template operator()<UpdateRule::adam>();
    case UpdateRule::adamw:
      return call.template operator()<UpdateRule::adamw>();
    case UpdateRule::lamb:
      return call.template operator()<UpdateRule::lamb>();
    case UpdateRule::lion:
      return call.template operator()<UpdateRule::lion>();
    case UpdateRule::ema:
      return call.template operator()<UpdateRule::ema>();
  }
}

/// Moments that a tensor under this rule reads and writes.
DEMI_HOST_DEVICE int moment_count(UpdateRule rule, std::uint32_t flags) {
  switch (rule) {
    case UpdateRule::sgd:
      return (flags & kMomentum) ? 1 : 0;
    case UpdateRule::adam:
    case UpdateRule::adamw:
      return (flags & kAmsgrad) ? 3 : 2;
    case UpdateRule::lamb:
      return 2;
    case UpdateRule::lion:
      return 1;
    case UpdateRule::ema:
      return 0;
  }
  return 0;
}

}  // namespace
}  // namespace demi::kernels
