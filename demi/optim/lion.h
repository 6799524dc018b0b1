#pragma once

#include <tuple>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of Lion, of a parameter group.
struct DEMI_API LionOptions : public RuleOptions<LionOptions> {
  /// Takes the learning rate; the other options are given by name.
  LionOptions(double lr = 1e-4);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 1e-4;
  /// The type of `betas`.
  typedef std::tuple<double, double> betas_t;
  /// Interpolation of the update, and decay of the momentum. 0 or more, under 1.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  /// Decoupled: the weight shrinks by lr x weight_decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2. Use a learning
/// rate 3 to 10 times lower than AdamW's and a weight decay higher by as much (section 5 there). 22
/// bytes a parameter and step with 16-bit gradients and one copy.
class DEMI_API Lion : public RuleOptimizer<LionOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
