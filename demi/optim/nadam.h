#pragma once

#include <tuple>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of NAdam, of a parameter group.
struct DEMI_API NAdamOptions : public RuleOptions<NAdamOptions> {
  /// Takes the learning rate; the other options are given by name.
  NAdamOptions(double lr = 2e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 2e-3;
  /// The type of `betas`.
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first and the second moment. 0 or more, under 1.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  /// Added to the root of the second moment.
  TORCH_ARG(double, eps) = 1e-8;
  /// L2 penalty, added to the gradient; or decoupled.
  TORCH_ARG(double, weight_decay) = 0;
  /// Speed at which the momentum grows to the first of `betas`. 0 or more.
  TORCH_ARG(double, momentum_decay) = 4e-3;
  /// The weight shrinks by lr x weight_decay instead, as AdamW's.
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.NAdam: Dozat 2016, "Incorporating Nesterov momentum into Adam". 30 bytes a parameter
/// and step with 16-bit gradients and one copy. One more number a tensor: mu_product, the product
/// of the momentums so far.
class DEMI_API NAdam : public RuleOptimizer<NAdamOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
