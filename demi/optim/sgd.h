#pragma once

#include "demi/optim/rule_optimizer.h"

namespace demi::optim {

struct DEMI_API SGDOptions : public RuleOptions<SGDOptions> {
  SGDOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 1e-3;
  /// Decay of the momentum buffer. 0: none is kept.
  TORCH_ARG(double, momentum) = 0;
  /// Share of the gradient that is kept out of the momentum buffer.
  TORCH_ARG(double, dampening) = 0;
  /// L2 penalty, added to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// Nesterov momentum. Needs momentum, and a dampening of 0.
  TORCH_ARG(bool, nesterov) = false;
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// For the kernels. Throws UsageError for an option out of its range.
  kernels::Group numbers() const;
  template <class Options, class Visit>
  static void each(Options& self, Visit visit) {
    visit("lr", self.lr());
    visit("momentum", self.momentum());
    visit("dampening", self.dampening());
    visit("weight_decay", self.weight_decay());
    visit("nesterov", self.nesterov());
    visit("maximize", self.maximize());
  }
};

/// torch.optim.SGD: stochastic gradient descent with momentum (Sutskever et al. 2013, "On the
/// importance of initialization and momentum in deep learning"). 14 bytes a parameter and step with
/// 16-bit gradients and one copy, 22 with momentum.
class DEMI_API SGD : public RuleOptimizer<SGDOptions, kernels::UpdateRule::sgd> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
