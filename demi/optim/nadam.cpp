#include "demi/optim/nadam.h"

#include "demi/optim/rule.h"

namespace demi::optim {

NAdamOptions::NAdamOptions(double lr) : lr_(lr) {}

const Rule& NAdamOptions::rule() {
  static const Rule rule = make_rule<NAdamOptions>(
      kernels::UpdateRule::nadam, "NAdam",
      [](NAdamOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"betas", &o.betas()},
                {"eps", &o.eps()},
                {"weight_decay", &o.weight_decay()},
                {"momentum_decay", &o.momentum_decay()},
                {"decoupled_weight_decay", &o.decoupled_weight_decay()},
                {"maximize", &o.maximize()}};
      },
      [](const NAdamOptions& o) -> kernels::Group {
        require_not_negative("NAdam", "momentum_decay", o.momentum_decay());
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .maximize = o.maximize(),
                .own = {o.momentum_decay(), o.decoupled_weight_decay() ? 1.0 : 0.0}};
      });
  return rule;
}

}  // namespace demi::optim
