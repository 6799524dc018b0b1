#pragma once

#include <tuple>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of RAdam, of a parameter group.
struct DEMI_API RAdamOptions : public RuleOptions<RAdamOptions> {
  /// Takes the learning rate; the other options are given by name.
  RAdamOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 1e-3;
  /// The type of `betas`.
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first and the second moment. 0 or more, under 1.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  /// Added to the root of the second moment.
  TORCH_ARG(double, eps) = 1e-8;
  /// L2 penalty, added to the gradient; or decoupled.
  TORCH_ARG(double, weight_decay) = 0;
  /// The weight shrinks by lr x weight_decay instead, as AdamW's.
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.RAdam: Liu et al. 2020, "On the variance of the adaptive learning rate and beyond",
/// algorithm 2. 30 bytes a parameter and step with 16-bit gradients and one copy.
class DEMI_API RAdam : public RuleOptimizer<RAdamOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
