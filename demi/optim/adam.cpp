#include "demi/optim/adam.h"

namespace demi::optim {

AdamOptions::AdamOptions(double lr) : lr_(lr) {}

kernels::Group AdamOptions::numbers() const {
  return checked({.learning_rate = lr_,
                  .beta1 = std::get<0>(betas_),
                  .beta2 = std::get<1>(betas_),
                  .epsilon = eps_,
                  .weight_decay = weight_decay_,
                  .amsgrad = amsgrad_,
                  .maximize = maximize_},
                 "optim.Adam");
}

}  // namespace demi::optim
