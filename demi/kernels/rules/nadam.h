#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(nadam, NAdam)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// torch.optim.NAdam: Dozat 2016, "Incorporating Nesterov momentum into Adam", whose momentum grows
/// by a schedule; mu_product is the product of what it was. Group::own: momentum_decay,
/// decoupled_weight_decay (0 or 1).
struct NAdam : Base {
  static constexpr std::uint32_t kDecoupled = kOwn;
  static constexpr std::array kStates{
      State{.name = "exp_avg"}, State{.name = "exp_avg_sq", .is_square = true},
      State{.name = "mu_product", .initial = 1.0f, .form = StateForm::scalar}};

  static DEMI_HOST_DEVICE std::uint32_t flags(const Group& group) {
    return group.own[1] != 0.0 ? kDecoupled : 0u;
  }

  /// The momentum of step t.
  static DEMI_HOST_DEVICE double momentum(const Group& group, std::int64_t t) {
    return group.beta1 * (1.0 - 0.5 * pow(0.96, static_cast<double>(t) * group.own[0]));
  }

  /// own: 1 - beta2^t, and the rates of gradient and momentum.
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    if (c.flags & kDecoupled) c.decay = decoupled_decay(group, at.rate);
    const double mu = momentum(group, at.step), mu_next = momentum(group, at.step + 1);
    *at.scalar *= static_cast<float>(mu);
    const double product = *at.scalar;
    c.own[0] = static_cast<float>(correction(group.beta2, at.step));
    c.own[1] = static_cast<float>(-at.rate * (1.0 - mu) / (1.0 - product));
    c.own[2] = static_cast<float>((-at.rate * mu_next) / (1.0 - product * mu_next));
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
    const V denominator = square_root(e.moment[1] / V(c.own[0])) + V(c.epsilon);
    e.parameter = e.parameter + V(c.own[1]) * gradient / denominator;
    e.parameter = e.parameter + V(c.own[2]) * e.moment[0] / denominator;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
