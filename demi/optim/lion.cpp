#include "demi/optim/lion.h"

#include "demi/optim/rule.h"

namespace demi::optim {

LionOptions::LionOptions(double lr) : lr_(lr) {}

const Rule& LionOptions::rule() {
  static const Rule rule = make_rule<LionOptions>(
      kernels::UpdateRule::lion, "Lion",
      [](LionOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"betas", &o.betas()},
                {"weight_decay", &o.weight_decay()},
                {"maximize", &o.maximize()}};
      },
      [](const LionOptions& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .weight_decay = o.weight_decay(),
                .maximize = o.maximize()};
      });
  return rule;
}

}  // namespace demi::optim
