#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(lion, Lion)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2, in the order of
/// the authors' PyTorch code.
struct Lion : Base {
  static constexpr std::array kStates{State{.name = "exp_avg"}};

  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    c.decay = decoupled_decay(group, at.rate);
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    if (c.flags & kDecay) e.parameter = e.parameter * V(c.decay);
    const V update = e.moment[0] * V(c.beta1) + V(c.one_minus_beta1) * e.gradient;
    e.parameter = e.parameter + V(c.negative_rate) * sign(update);
    e.moment[0] = e.moment[0] * V(c.beta2) + V(c.one_minus_beta2) * e.gradient;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
