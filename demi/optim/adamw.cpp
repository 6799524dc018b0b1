#include "demi/optim/adamw.h"

#include "demi/optim/rule.h"

namespace demi::optim {

AdamWOptions::AdamWOptions(double lr) : RuleOptions(lr) {}

AdamWOptions::AdamWOptions(const Torch& options) : RuleOptions(options) {}

const Rule& AdamWOptions::rule() {
  static const Rule rule = make_rule<AdamWOptions>(
      kernels::UpdateRule::adamw, "AdamW",
      [](AdamWOptions& o) -> OptionList {
        return {{"lr", &o.lr()},           {"betas", &o.betas()},
                {"eps", &o.eps()},         {"weight_decay", &o.weight_decay()},
                {"amsgrad", &o.amsgrad()}, {"maximize", &o.maximize()}};
      },
      [](const AdamWOptions& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .amsgrad = o.amsgrad(),
                .maximize = o.maximize()};
      });
  return rule;
}

}  // namespace demi::optim
