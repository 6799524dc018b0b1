#include "demi/optim/sgd.h"

namespace demi::optim {

SGDOptions::SGDOptions(double lr) : RuleOptions(lr) {}

SGDOptions::SGDOptions(const Torch& options) : RuleOptions(options) {}

kernels::Group SGDOptions::numbers() const {
  return checked({.learning_rate = lr(),
                  .momentum = momentum(),
                  .dampening = dampening(),
                  .weight_decay = weight_decay(),
                  .nesterov = nesterov(),
                  .maximize = maximize_},
                 kOptimizer);
}

}  // namespace demi::optim
