#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(yogi, Yogi)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// Zaheer et al. 2018, "Adaptive methods for nonconvex optimization", algorithm 2.
struct Yogi : Base {
  static constexpr std::array kStates{State{.name = "exp_avg"},
                                      State{.name = "exp_avg_sq", .initial = 1e-6F}};

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    V gradient = e.gradient;
    if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
    const V square = gradient * gradient;
    e.moment[0] = e.moment[0] * V(c.beta1) + V(c.one_minus_beta1) * gradient;
    e.moment[1] = e.moment[1] - V(c.one_minus_beta2) * sign(e.moment[1] - square) * square;
    e.parameter =
        e.parameter + V(c.negative_rate) * e.moment[0] / (square_root(e.moment[1]) + V(c.epsilon));
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
