#pragma once

#include <tuple>

#include "demi/optim/rule_optimizer.h"

namespace demi::optim {

struct DEMI_API LionOptions : public torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-4);  // NOLINT(google-explicit-constructor): as torch::optim's
  TORCH_ARG(double, lr) = 1e-4;   // learning rate; 0 or more
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t,
            betas) = std::make_tuple(0.9,
                                     0.99);  // interpolation of the update, and of the momentum
  TORCH_ARG(double, weight_decay) = 0;       // decoupled: the weight shrinks by lr x weight_decay
  TORCH_ARG(bool, maximize) = false;         // climb instead

 public:
  kernels::Group numbers() const;
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double rate) override { lr(rate); }
};

/// Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2. Wants a learning
/// rate 3 to 10 times lower and a weight decay as much higher than AdamW (section 5 there). 22
/// bytes a parameter and step with 16-bit gradients and one copy.
class DEMI_API Lion : public RuleOptimizer<LionOptions, kernels::Rule::lion> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
