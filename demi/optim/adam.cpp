#include "demi/optim/adam.h"

namespace demi::optim {

AdamOptions::AdamOptions(double lr) : RuleOptions(lr) {}

AdamOptions::AdamOptions(const Torch& options) : RuleOptions(options) {}

kernels::Group AdamOptions::numbers() const {
  return checked({.learning_rate = lr(),
                  .beta1 = std::get<0>(betas()),
                  .beta2 = std::get<1>(betas()),
                  .epsilon = eps(),
                  .weight_decay = weight_decay(),
                  .amsgrad = amsgrad(),
                  .maximize = maximize_},
                 kOptimizer);
}

}  // namespace demi::optim
