#include "demi/optim/lamb.h"

namespace demi::optim {

LAMBOptions::LAMBOptions(double lr) : lr_(lr) {}

kernels::Group LAMBOptions::numbers() const {
  return checked({.learning_rate = lr_,
                  .beta1 = std::get<0>(betas_),
                  .beta2 = std::get<1>(betas_),
                  .epsilon = eps_,
                  .weight_decay = weight_decay_,
                  .trust_limit = trust_limit_,
                  .maximize = maximize_,
                  .adapt = adapt_},
                 kOptimizer);
}

}  // namespace demi::optim
