#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(lamb, LAMB)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// You et al. 2020, "Large batch optimization for deep learning: training BERT in 76 minutes",
/// algorithm 2: the moments (pass 2), and r + lambda x.
struct LAMB : Base {
  static constexpr std::array kStates{State{.name = "exp_avg"},
                                      State{.name = "exp_avg_sq", .is_square = true}};
  static constexpr bool kTrust = true;

  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    set_corrections(c, group, at.step);
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    e.moment[0] = e.moment[0] * V(c.beta1) + V(c.one_minus_beta1) * e.gradient;
    e.moment[1] = e.moment[1] * V(c.beta2) + V(c.one_minus_beta2) * e.gradient * e.gradient;
  }

  template <class V>
  static DEMI_HOST_DEVICE V direction(const Elements<V>& e, const Coefficients& c) {
    const V first = e.moment[0] * V(c.inverse_correction1);
    const V second = e.moment[1] * V(c.inverse_correction2);
    V update = first / (square_root(second) + V(c.epsilon));
    if (c.flags & kDecay) update = update + V(c.decay) * e.parameter;
    return update;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
