#include "demi/optim/radam.h"

#include "demi/optim/rule.h"

namespace demi::optim {

RAdamOptions::RAdamOptions(double lr) : lr_(lr) {}

const Rule& RAdamOptions::rule() {
  static const Rule rule = make_rule<RAdamOptions>(
      kernels::UpdateRule::radam, "RAdam",
      [](RAdamOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"betas", &o.betas()},
                {"eps", &o.eps()},
                {"weight_decay", &o.weight_decay()},
                {"decoupled_weight_decay", &o.decoupled_weight_decay()},
                {"maximize", &o.maximize()}};
      },
      [](const RAdamOptions& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .maximize = o.maximize(),
                .own = {o.decoupled_weight_decay() ? 1.0 : 0.0}};
      });
  return rule;
}

}  // namespace demi::optim
