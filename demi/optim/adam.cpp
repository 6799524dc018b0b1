#include "demi/optim/adam.h"

#include "demi/optim/rule.h"

namespace demi::optim {

AdamOptions::AdamOptions(double lr) : RuleOptions(lr) {}

AdamOptions::AdamOptions(const Torch& options) : RuleOptions(options) {}

const Rule& AdamOptions::rule() {
  static const Rule rule = make_rule<AdamOptions>(
      kernels::UpdateRule::adam, "Adam",
      [](AdamOptions& o) -> OptionList {
        return {{"lr", &o.lr()},           {"betas", &o.betas()},
                {"eps", &o.eps()},         {"weight_decay", &o.weight_decay()},
                {"amsgrad", &o.amsgrad()}, {"maximize", &o.maximize()}};
      },
      [](const AdamOptions& o) -> kernels::Group {
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
