#pragma once

#include <torch/optim/sgd.h>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of SGD, of a parameter group.
struct DEMI_API SGDOptions : public RuleOptions<SGDOptions, torch::optim::SGDOptions> {
  /// LibTorch's options of this rule.
  using Torch = torch::optim::SGDOptions;
  /// LibTorch's optimizer of this rule.
  using TorchOptimizer = torch::optim::SGD;
  /// Takes the learning rate; the other options have LibTorch's defaults.
  SGDOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// LibTorch's options, as they are.
  SGDOptions(const Torch& options);  // NOLINT(google-explicit-constructor): a program moves to demi
  /// Learning rate. 0 or more.
  DEMI_TORCH_OPTION(double, lr);
  /// Decay of the momentum buffer. 0: none is kept.
  DEMI_TORCH_OPTION(double, momentum);
  /// Share of the gradient that is kept out of the momentum buffer.
  DEMI_TORCH_OPTION(double, dampening);
  /// L2 penalty, added to the gradient.
  DEMI_TORCH_OPTION(double, weight_decay);
  /// Nesterov momentum. Needs momentum, and a dampening of 0.
  DEMI_TORCH_OPTION(bool, nesterov);
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.SGD: stochastic gradient descent with momentum (Sutskever et al. 2013, "On the
/// importance of initialization and momentum in deep learning"). 14 bytes a parameter and step with
/// 16-bit gradients and one copy, 22 with momentum.
class DEMI_API SGD : public RuleOptimizer<SGDOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
