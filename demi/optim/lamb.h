#pragma once

#include <limits>
#include <tuple>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// Options of LAMB, of a parameter group.
struct DEMI_API LAMBOptions : public RuleOptions<LAMBOptions> {
  /// Takes the learning rate; the other options are given by name.
  LAMBOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 1e-3;
  /// The type of `betas`.
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first and the second moment. 0 or more, under 1.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  /// Added to the root of the second moment.
  TORCH_ARG(double, eps) = 1e-6;
  /// Part of the update before the trust ratio.
  TORCH_ARG(double, weight_decay) = 0;
  /// Greatest trust ratio. Above 0.
  TORCH_ARG(double, trust_limit) = std::numeric_limits<double>::infinity();
  /// false: a trust ratio of 1.
  TORCH_ARG(bool, adapt) = true;
  /// Maximise instead of minimise.
  TORCH_ARG(bool, maximize) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// You et al. 2020, "Large batch optimization for deep learning: training BERT in 76 minutes",
/// algorithm 2. The trust ratio needs norms of each tensor, and so a third pass: 42 bytes a
/// parameter and step with 16-bit gradients and one copy.
class DEMI_API LAMB : public RuleOptimizer<LAMBOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
