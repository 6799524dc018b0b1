#include "demi/optim/lion.h"

namespace demi::optim {

LionOptions::LionOptions(double lr) : lr_(lr) {}

kernels::Group LionOptions::numbers() const {
  return checked({.learning_rate = lr_,
                  .beta1 = std::get<0>(betas_),
                  .beta2 = std::get<1>(betas_),
                  .weight_decay = weight_decay_,
                  .maximize = maximize_},
                 kOptimizer);
}

}  // namespace demi::optim
