#include "demi/optim/lamb.h"

#include "demi/optim/rule.h"

namespace demi::optim {

LAMBOptions::LAMBOptions(double lr) : lr_(lr) {}

const Rule& LAMBOptions::rule() {
  static const Rule rule = make_rule<LAMBOptions>(
      kernels::UpdateRule::lamb, "LAMB",
      [](LAMBOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"betas", &o.betas()},
                {"eps", &o.eps()},
                {"weight_decay", &o.weight_decay()},
                {"trust_limit", &o.trust_limit()},
                {"adapt", &o.adapt()},
                {"maximize", &o.maximize()}};
      },
      [](const LAMBOptions& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .trust_limit = o.trust_limit(),
                .maximize = o.maximize(),
                .adapt = o.adapt()};
      });
  return rule;
}

}  // namespace demi::optim
