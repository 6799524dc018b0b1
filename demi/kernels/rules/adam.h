#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(adam, Adam)
#else
#include "demi/kernels/rules/adam_moments.h"

namespace demi::kernels {
namespace {
namespace rules {

/// Adam with L2 regularisation: the decay is part of the gradient.
struct Adam : AdamMoments {
  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    V gradient = e.gradient;
    if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
    move(e, gradient, c);
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
