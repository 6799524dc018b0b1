#include "demi/optim/yogi.h"

#include "demi/optim/rule.h"

namespace demi::optim {

YogiOptions::YogiOptions(double lr) : lr_(lr) {}

const Rule& YogiOptions::rule() {
  static const Rule rule = make_rule<YogiOptions>(
      kernels::UpdateRule::yogi, "Yogi",
      [](YogiOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"betas", &o.betas()},
                {"eps", &o.eps()},
                {"weight_decay", &o.weight_decay()}};
      },
      [](const YogiOptions& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay()};
      });
  return rule;
}

}  // namespace demi::optim
