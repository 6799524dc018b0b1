#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(radam, RAdam)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// torch.optim.RAdam: Liu et al. 2020, "On the variance of the adaptive learning rate and beyond",
/// algorithm 2. Group::own: decoupled_weight_decay (0 or 1).
struct RAdam : Base {
  static constexpr std::uint32_t kDecoupled = kOwn, kRectified = kOwn << 1;
  static constexpr std::array kStates{State{.name = "exp_avg"},
                                      State{.name = "exp_avg_sq", .is_square = true}};

  static DEMI_HOST_DEVICE std::uint32_t flags(const Group& group) {
    return group.own[0] != 0.0 ? kDecoupled : 0u;
  }

  /// own: 1 - beta1^t, the learning rate, the rectification of the second moment's variance. The
  /// second moment counts from the step on in which that variance is known (rho above 5).
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    if (c.flags & kDecoupled) c.decay = decoupled_decay(group, at.rate);
    set_corrections(c, group, at.step);
    c.own[0] = static_cast<float>(correction(group.beta1, at.step));
    c.own[1] = static_cast<float>(at.rate);
    const double t = static_cast<double>(at.step), power = pow(group.beta2, t);
    const double last = 2.0 / (1.0 - group.beta2) - 1.0;
    const double rho = last - 2.0 * t * power / correction(group.beta2, at.step);
    if (!(rho > 5.0)) return;
    c.flags |= kRectified;
    c.own[2] = static_cast<float>(
        sqrt((rho - 4.0) * (rho - 2.0) * last / ((last - 4.0) * (last - 2.0) * rho)));
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    V gradient = e.gradient;
    if (c.flags & kDecay) {
      if (c.flags & kDecoupled) {
        e.parameter = e.parameter * V(c.decay);
      } else {
        gradient = gradient + V(c.decay) * e.parameter;
      }
    }
    e.moment[0] = lerp(e.moment[0], gradient, c.one_minus_beta1);
    e.moment[1] = e.moment[1] * V(c.beta2) + V(c.one_minus_beta2) * gradient * gradient;
    V update = e.moment[0] / V(c.own[0]) * V(c.own[1]);
    if (c.flags & kRectified) {
      const V denominator = square_root(e.moment[1]) + V(c.epsilon);
      update = update * (reciprocal(denominator) * V(c.root_bias_correction2)) * V(c.own[2]);
    }
    e.parameter = e.parameter - update;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
