#include "demi/optim/adamw.h"

namespace demi::optim {

AdamWOptions::AdamWOptions(double lr) : lr_(lr) {}

kernels::Group AdamWOptions::numbers() const {
  return checked({.learning_rate = lr_,
                  .beta1 = std::get<0>(betas_),
                  .beta2 = std::get<1>(betas_),
                  .epsilon = eps_,
                  .weight_decay = weight_decay_,
                  .amsgrad = amsgrad_,
                  .maximize = maximize_},
                 "optim.AdamW");
}

}  // namespace demi::optim
