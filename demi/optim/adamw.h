#pragma once

#include <torch/optim/adamw.h>

#include <tuple>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of AdamW, of a parameter group.
struct DEMI_API AdamWOptions : public RuleOptions<AdamWOptions, torch::optim::AdamWOptions> {
  /// LibTorch's options of this rule.
  using Torch = torch::optim::AdamWOptions;
  /// LibTorch's optimizer of this rule.
  using TorchOptimizer = torch::optim::AdamW;
  /// Takes the learning rate; the other options have LibTorch's defaults.
  AdamWOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// LibTorch's options, as they are.
  // NOLINTNEXTLINE(google-explicit-constructor): a program moves to demi
  AdamWOptions(const Torch& options);
  /// Learning rate. 0 or more.
  DEMI_TORCH_OPTION(double, lr);
  /// The type of `betas`.
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first and the second moment. 0 or more, under 1.
  DEMI_TORCH_OPTION(betas_t, betas);
  /// Added to the root of the second moment.
  DEMI_TORCH_OPTION(double, eps);
  /// Decoupled: the weight shrinks by lr x weight_decay.
  DEMI_TORCH_OPTION(double, weight_decay);
  /// Divide by the greatest second moment so far (Reddi et al. 2018).
  DEMI_TORCH_OPTION(bool, amsgrad);
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.AdamW: Loshchilov and Hutter 2019, "Decoupled weight decay regularization",
/// algorithm 2. 30 bytes a parameter and step with 16-bit gradients and one copy, 38 with amsgrad.
class DEMI_API AdamW : public RuleOptimizer<AdamWOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
