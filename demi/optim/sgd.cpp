#include "demi/optim/sgd.h"

namespace demi::optim {

SGDOptions::SGDOptions(double lr) : lr_(lr) {}

kernels::Group SGDOptions::numbers() const {
  return checked({.learning_rate = lr_,
                  .momentum = momentum_,
                  .dampening = dampening_,
                  .weight_decay = weight_decay_,
                  .nesterov = nesterov_,
                  .maximize = maximize_},
                 "optim.SGD");
}

}  // namespace demi::optim
