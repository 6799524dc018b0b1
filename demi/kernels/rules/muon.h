#ifdef DEMI_RULE_ENTRY
DEMI_RULE_ENTRY(muon, Muon)
#else
#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks", in the order of
/// torch.optim.Muon: the momentum (pass 2), whose direction is then orthogonalised by matrix
/// products. MuonApply moves the parameter. Group::own: the rate of this update as a multiple of
/// the group's, and that of MuSGD's second update (0: none).
struct Muon : Base {
  static constexpr std::uint32_t kWithSgd = kOwn;
  static constexpr std::array kStates{State{.name = "momentum_buffer"},
                                      State{.name = "momentum_buffer_SGD", .kept_if = kWithSgd}};
  static constexpr std::uint32_t kTouched = 1;
  static constexpr Direction kDirection = Direction::written;

  static DEMI_HOST_DEVICE std::uint32_t flags(const Group& group) {
    return group.own[1] != 0.0 ? kWithSgd : 0u;
  }
  /// own: 1 - momentum, and the negative rate of the second update.
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group& group, const At& at) {
    if (!(c.flags & kWithSgd)) c.decay = decoupled_decay(group, at.rate);
    c.negative_rate = static_cast<float>(-(at.rate * at.rate_factor) * group.own[0]);
    c.own[0] = static_cast<float>(1.0 - group.momentum);
    c.own[1] = static_cast<float>(-(at.rate * group.own[1]));
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    e.moment[0] = lerp(e.moment[0], e.gradient, c.own[0]);
    e.direction = (c.flags & kNesterov) ? lerp(e.gradient, e.moment[0], c.momentum) : e.moment[0];
  }
};

/// Pass 3 of Muon: decay and step, without the gradient. With MuSGD (ultralytics 8.4) a step of
/// torch.optim.SGD follows, with a momentum of its own, and the decay is part of its gradient.
struct MuonApply : Base {
  static constexpr std::uint32_t kWithSgd = Muon::kWithSgd;
  static constexpr auto kStates = Muon::kStates;
  static constexpr std::uint32_t kTouched = 2;
  static constexpr std::uint32_t kGradientIf = kWithSgd;
  static constexpr Direction kDirection = Direction::read;

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    if (!(c.flags & kWithSgd)) {
      if (c.flags & kDecay) e.parameter = e.parameter * V(c.decay);
      e.parameter = e.parameter + V(c.negative_rate) * e.direction;
      return;
    }
    e.parameter = e.parameter + V(c.negative_rate) * e.direction;
    V gradient = e.gradient;
    if (c.flags & kDecay) gradient = gradient + V(c.decay) * e.parameter;
    e.moment[1] = e.moment[1] * V(c.momentum) + gradient;
    if (c.flags & kNesterov) {
      gradient = gradient + V(c.momentum) * e.moment[1];
    } else {
      gradient = e.moment[1];
    }
    e.parameter = e.parameter + V(c.own[1]) * gradient;
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
#endif
