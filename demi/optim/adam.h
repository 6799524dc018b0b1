#pragma once

#include <torch/optim/adam.h>

#include <tuple>

#include "demi/optim/rule_optimizer.h"

namespace demi::optim {

struct DEMI_API AdamOptions : public RuleOptions<AdamOptions, torch::optim::AdamOptions> {
  using Torch = torch::optim::AdamOptions;
  static constexpr auto kOptimizer = "optim.Adam";
  static constexpr auto kTypes = "demi::optim::AdamOptions, torch::optim::AdamOptions";
  AdamOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// LibTorch's options, as they are.
  // NOLINTNEXTLINE(google-explicit-constructor): a program moves to demi
  AdamOptions(const Torch& options);
  /// Learning rate. 0 or more.
  DEMI_TORCH_OPTION(double, lr);
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first and the second moment. 0 or more, under 1.
  DEMI_TORCH_OPTION(betas_t, betas);
  /// Added to the root of the second moment.
  DEMI_TORCH_OPTION(double, eps);
  /// L2 penalty, added to the gradient.
  DEMI_TORCH_OPTION(double, weight_decay);
  /// Divide by the greatest second moment so far (Reddi et al. 2018).
  DEMI_TORCH_OPTION(bool, amsgrad);
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// For the kernels. Throws UsageError for an option out of its range.
  kernels::Group numbers() const;
  template <class Visit, class... Selves>
  static void each(Visit visit, Selves&... selves) {
    visit("lr", selves.lr()...);
    visit("betas", selves.betas()...);
    visit("eps", selves.eps()...);
    visit("weight_decay", selves.weight_decay()...);
    visit("amsgrad", selves.amsgrad()...);
    visit("maximize", selves.maximize()...);
  }
};

/// torch.optim.Adam: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
/// 30 bytes a parameter and step with 16-bit gradients and one copy, 38 with amsgrad.
class DEMI_API Adam : public RuleOptimizer<AdamOptions, kernels::UpdateRule::adam> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
