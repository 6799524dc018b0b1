#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(sgd, SGD)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// torch.optim.SGD: Sutskever et al. 2013, "On the importance of initialization and momentum in
/// deep learning", with dampening; the first step puts the gradient itself into the momentum
/// buffer.
struct SGD : Base {
  static constexpr std::array kStates{
      State{.name = "momentum_buffer", .kept_if = kMomentum, .begins_count = true}};

  static DEMI_HOST_DEVICE std::uint32_t flags(const Group& group) {
    return group.momentum != 0.0 ? kMomentum : 0u;
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
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
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
