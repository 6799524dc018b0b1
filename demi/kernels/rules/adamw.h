#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(adamw, AdamW)
#else
#include "demi/kernels/rules/adam_moments.h"

namespace demi::kernels {
namespace {
namespace rules {

/// Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2 with the
/// schedule inside lr, as torch.optim.AdamW.
struct AdamW : AdamMoments {
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    AdamMoments::coefficients(c, group, at);
    c.decay = decoupled_decay(group, at.rate);
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    if (c.flags & kDecay) e.parameter = e.parameter * V(c.decay);
    move(e, e.gradient, c);
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
