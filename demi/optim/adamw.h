#pragma once

#include <tuple>

#include "demi/optim/rule_optimizer.h"

namespace demi::optim {

struct DEMI_API AdamWOptions : public RuleOptions<AdamWOptions> {
  AdamWOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 1e-3;
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first and the second moment. 0 or more, under 1.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  /// Added to the root of the second moment.
  TORCH_ARG(double, eps) = 1e-8;
  /// Decoupled: the weight shrinks by lr x weight_decay.
  TORCH_ARG(double, weight_decay) = 1e-2;
  /// Divide by the greatest second moment so far (Reddi et al. 2018).
  TORCH_ARG(bool, amsgrad) = false;
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// For the kernels. Throws UsageError for an option out of its range.
  kernels::Group numbers() const;
  template <class Options, class Visit>
  static void each(Options& self, Visit visit) {
    visit("lr", self.lr());
    visit("betas", self.betas());
    visit("eps", self.eps());
    visit("weight_decay", self.weight_decay());
    visit("amsgrad", self.amsgrad());
    visit("maximize", self.maximize());
  }
};

/// torch.optim.AdamW: Loshchilov and Hutter 2019, "Decoupled weight decay regularization",
/// algorithm 2. 30 bytes a parameter and step with 16-bit gradients and one copy, 38 with amsgrad.
class DEMI_API AdamW : public RuleOptimizer<AdamWOptions, kernels::UpdateRule::adamw> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
