#include "demi/optim/adam.h"

#include "demi/optim/adam_rule.h"

namespace demi::optim {

AdamOptions::AdamOptions(double lr) : RuleOptions(lr) {}

AdamOptions::AdamOptions(const Torch& options) : RuleOptions(options) {}

const Rule& AdamOptions::rule() {
  static const Rule rule = make_adam_rule<AdamOptions>(kernels::UpdateRule::adam, "Adam");
  return rule;
}

}  // namespace demi::optim
