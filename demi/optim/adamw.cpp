#include "demi/optim/adamw.h"

namespace demi::optim {

AdamWOptions::AdamWOptions(double lr) : RuleOptions(lr) {}

AdamWOptions::AdamWOptions(const Torch& options) : RuleOptions(options) {}

kernels::Group AdamWOptions::numbers() const {
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
