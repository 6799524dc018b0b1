#pragma once

#include <string>
#include <tuple>

#include "demi/optim/rule.h"

namespace demi::optim {

/// The rule of Adam and AdamW, which have the same options and differ in what `id` does with
/// weight_decay.
template <class Options>
Rule make_adam_rule(kernels::UpdateRule id, const std::string& name) {
  return make_rule<Options>(
      id, name,
      [](Options& o) -> OptionList {
        return {{"lr", &o.lr()},           {"betas", &o.betas()},
                {"eps", &o.eps()},         {"weight_decay", &o.weight_decay()},
                {"amsgrad", &o.amsgrad()}, {"maximize", &o.maximize()}};
      },
      [](const Options& o) -> kernels::Group {
        return {.learning_rate = o.lr(),
                .beta1 = std::get<0>(o.betas()),
                .beta2 = std::get<1>(o.betas()),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .amsgrad = o.amsgrad(),
                .maximize = o.maximize()};
      });
}

}  // namespace demi::optim
