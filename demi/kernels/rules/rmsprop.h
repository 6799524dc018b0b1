#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(rmsprop, RMSprop)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// torch.optim.RMSprop: Tieleman and Hinton 2012, "Lecture 6.5 - rmsprop", with eps outside of the
/// root; centered: Graves 2013, "Generating sequences with recurrent neural networks", equation 38.
/// Group::own: alpha, centered (0 or 1).
struct RMSprop : Base {
  static constexpr std::uint32_t kCentered = kOwn;
  static constexpr std::array kStates{
      State{.name = "square_avg", .is_square = true, .fp32_if = kCentered},
      State{.name = "momentum_buffer", .kept_if = kMomentum},
      State{.name = "grad_avg", .kept_if = kCentered, .fp32_if = kCentered}};

  static DEMI_HOST_DEVICE std::uint32_t flags(const Group& group) {
    return (group.momentum != 0.0 ? kMomentum : 0u) | (group.own[1] != 0.0 ? kCentered : 0u);
  }
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At&) {
    c.own[0] = static_cast<float>(group.own[0]);
    c.own[1] = static_cast<float>(1.0 - group.own[0]);
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    V gradient = e.gradient;
    if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
    e.moment[0] = e.moment[0] * V(c.own[0]) + V(c.own[1]) * gradient * gradient;
    V square = e.moment[0];
    if (c.flags & kCentered) {
      e.moment[2] = lerp(e.moment[2], gradient, c.own[1]);
      square = square - e.moment[2] * e.moment[2];
    }
    const V denominator = square_root(square) + V(c.epsilon);
    if (c.flags & kMomentum) {
      e.moment[1] = e.moment[1] * V(c.momentum) + gradient / denominator;
      e.parameter = e.parameter + V(c.negative_rate) * e.moment[1];
    } else {
      e.parameter = e.parameter + V(c.negative_rate) * gradient / denominator;
    }
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
