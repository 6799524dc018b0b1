#pragma once

#include <tuple>

#include "demi/optim/rule_optimizer.h"

namespace demi::optim {

struct DEMI_API LionOptions : public RuleOptions<LionOptions> {
  LionOptions(double lr = 1e-4);  // NOLINT(google-explicit-constructor): as torch::optim's
  TORCH_ARG(double, lr) = 1e-4;   // learning rate; 0 or more
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t,
            betas) = std::make_tuple(0.9,
                                     0.99);  // interpolation of the update, and of the momentum
  TORCH_ARG(double, weight_decay) = 0;       // decoupled: the weight shrinks by lr x weight_decay
  TORCH_ARG(bool, maximize) = false;         // climb instead

 public:
  kernels::Group numbers() const;  // checked
  template <class Options, class Visit>
  static void each(Options& self, Visit visit) {
    visit("lr", self.lr());
    visit("betas", self.betas());
    visit("weight_decay", self.weight_decay());
    visit("maximize", self.maximize());
  }
};

/// Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2. Wants a learning
/// rate 3 to 10 times lower and a weight decay as much higher than AdamW (section 5 there). 22
/// bytes a parameter and step with 16-bit gradients and one copy.
class DEMI_API Lion : public RuleOptimizer<LionOptions, kernels::UpdateRule::lion> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
