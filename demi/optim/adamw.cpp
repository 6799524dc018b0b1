#include "demi/optim/adamw.h"

#include "demi/optim/adam_rule.h"

namespace demi::optim {

AdamWOptions::AdamWOptions(double lr) : RuleOptions(lr) {}

AdamWOptions::AdamWOptions(const Torch& options) : RuleOptions(options) {}

const Rule& AdamWOptions::rule() {
  static const Rule rule = make_adam_rule<AdamWOptions>(kernels::UpdateRule::adamw, "AdamW");
  return rule;
}

}  // namespace demi::optim
