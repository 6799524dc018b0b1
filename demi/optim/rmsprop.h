#pragma once

#include <torch/optim/rmsprop.h>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of RMSprop, of a parameter group.
struct DEMI_API RMSpropOptions : public RuleOptions<RMSpropOptions, torch::optim::RMSpropOptions> {
  /// LibTorch's options of this rule.
  using Torch = torch::optim::RMSpropOptions;
  /// LibTorch's optimizer of this rule.
  using TorchOptimizer = torch::optim::RMSprop;
  /// Takes the learning rate; the other options have LibTorch's defaults.
  RMSpropOptions(double lr = 1e-2);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// LibTorch's options, as they are.
  // NOLINTNEXTLINE(google-explicit-constructor): a program moves to demi
  RMSpropOptions(const Torch& options);
  /// Learning rate. 0 or more.
  DEMI_TORCH_OPTION(double, lr);
  /// Decay of the averages of squares and, if centered, of gradients. 0 or more.
  DEMI_TORCH_OPTION(double, alpha);
  /// Added to the root of the averaged squares.
  DEMI_TORCH_OPTION(double, eps);
  /// L2 penalty, added to the gradient.
  DEMI_TORCH_OPTION(double, weight_decay);
  /// Decay of the momentum buffer. 0: none is kept.
  DEMI_TORCH_OPTION(double, momentum);
  /// Divide by the root of the estimated variance (Graves 2013).
  DEMI_TORCH_OPTION(bool, centered);
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.RMSprop: Tieleman and Hinton 2012, "Lecture 6.5 - rmsprop". 22 bytes a parameter and
/// step with 16-bit gradients and one copy, 8 more each with momentum and if centered.
class DEMI_API RMSprop : public RuleOptimizer<RMSpropOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
