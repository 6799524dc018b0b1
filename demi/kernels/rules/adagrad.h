#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(adagrad, Adagrad)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// torch.optim.Adagrad: Duchi et al. 2011, "Adaptive subgradient methods for online learning and
/// stochastic optimization", figure 1 with diagonal matrices. Group::own: lr_decay,
/// initial_accumulator_value.
struct Adagrad : Base {
  static constexpr std::array kStates{State{.name = "sum", .is_square = true, .always_fp32 = true}};

  static float initial(const State&, const Group& group) {
    return static_cast<float>(group.own[1]);
  }
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    const auto before = static_cast<double>(at.step - 1);
    c.negative_rate = static_cast<float>(-(at.rate / (1.0 + before * group.own[0])));
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    V gradient = e.gradient;
    if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
    e.moment[0] = e.moment[0] + gradient * gradient;
    const V denominator = square_root(e.moment[0]) + V(c.epsilon);
    e.parameter = e.parameter + V(c.negative_rate) * gradient / denominator;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
