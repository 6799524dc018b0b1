#pragma once

#include "demi/kernels/rules/rule.h"

namespace demi::kernels {
namespace {
namespace rules {

/// Exponential moving average of the weights, which no optimizer has: `gradient` is the weight,
/// negative_rate is 1 - decay.
struct EMA : Base {
  static DEMI_HOST_DEVICE void coefficients(Coefficients& c, const Group&, const At& at) {
    c.negative_rate = static_cast<float>(at.rate);
    c.flags &= ~kMaximize;
  }

  template <class V>
  static DEMI_HOST_DEVICE void update(Elements<V>& e, const Coefficients& c) {
    e.parameter = lerp(e.parameter, e.gradient, c.negative_rate);
  }
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
