#pragma once

#include <torch/optim/adagrad.h>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of Adagrad, of a parameter group.
struct DEMI_API AdagradOptions : public RuleOptions<AdagradOptions, torch::optim::AdagradOptions> {
  /// LibTorch's options of this rule.
  using Torch = torch::optim::AdagradOptions;
  /// LibTorch's optimizer of this rule.
  using TorchOptimizer = torch::optim::Adagrad;
  /// Takes the learning rate; the other options have LibTorch's defaults.
  AdagradOptions(double lr = 1e-2);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// LibTorch's options, as they are.
  // NOLINTNEXTLINE(google-explicit-constructor): a program moves to demi
  AdagradOptions(const Torch& options);
  /// Learning rate. 0 or more.
  DEMI_TORCH_OPTION(double, lr);
  /// The rate of step t is lr / (1 + (t - 1) lr_decay), t from 1. 0 or more.
  DEMI_TORCH_OPTION(double, lr_decay);
  /// L2 penalty, added to the gradient.
  DEMI_TORCH_OPTION(double, weight_decay);
  /// What `sum` begins with. 0 or more. Read when a parameter gets its first gradient, and for the
  /// rows that replace_parameter adds.
  DEMI_TORCH_OPTION(double, initial_accumulator_value);
  /// Added to the root of `sum`.
  DEMI_TORCH_OPTION(double, eps);
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.Adagrad: Duchi et al. 2011, "Adaptive subgradient methods for online learning and
/// stochastic optimization". 22 bytes a parameter and step with 16-bit gradients and one copy.
/// `sum` stays in FP32 whatever StepOptions::moments says.
class DEMI_API Adagrad : public RuleOptimizer<AdagradOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
