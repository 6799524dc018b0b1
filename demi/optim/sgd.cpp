#include "demi/optim/sgd.h"

#include "demi/optim/rule.h"

namespace demi::optim {

SGDOptions::SGDOptions(double lr) : RuleOptions(lr) {}

SGDOptions::SGDOptions(const Torch& options) : RuleOptions(options) {}

const Rule& SGDOptions::rule() {
  static const Rule rule = make_rule<SGDOptions>(
      kernels::UpdateRule::sgd, "SGD",
      [](SGDOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"momentum", &o.momentum()},
                {"dampening", &o.dampening()},
                {"weight_decay", &o.weight_decay()},
                {"nesterov", &o.nesterov()},
                {"maximize", &o.maximize()}};
      },
      [](const SGDOptions& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .momentum = o.momentum(),
                .dampening = o.dampening(),
                .weight_decay = o.weight_decay(),
                .nesterov = o.nesterov(),
                .maximize = o.maximize()};
      });
  return rule;
}

}  // namespace demi::optim
