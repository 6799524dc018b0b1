#pragma once

#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// What Adam and AdamW share: Kingma and Ba 2015, "Adam: a method for stochastic optimization",
/// algorithm 1, from the (decayed) gradient on; amsgrad: Reddi et al. 2018, "On the convergence of
/// Adam and beyond", algorithm 2, as torch.optim.Adam does it.
struct AdamMoments : Base {
  static constexpr std::array kStates{
      State{.name = "exp_avg"}, State{.name = "exp_avg_sq", .is_square = true},
      State{.name = "max_exp_avg_sq", .kept_if = kAmsgrad, .fp32_if = kAmsgrad}};

  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    set_corrections(c, group, at.step);
    c.negative_rate = static_cast<float>(-(at.rate / correction(group.beta1, at.step)));
  }

  template <class V>
  static DEMI_HOST_DEVICE void move(Elements<V>& e, V gradient, const Coefficients& c) {
    e.moment[0] = lerp(e.moment[0], gradient, c.one_minus_beta1);
    e.moment[1] = e.moment[1] * V(c.beta2) + V(c.one_minus_beta2) * gradient * gradient;
    V second = e.moment[1];
    if (c.flags & kAmsgrad) second = e.moment[2] = maximum(e.moment[2], e.moment[1]);
    const V denominator = square_root(second) / V(c.root_bias_correction2) + V(c.epsilon);
    e.parameter = e.parameter + V(c.negative_rate) * e.moment[0] / denominator;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
