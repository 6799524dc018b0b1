#pragma once

#include <tuple>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

struct DEMI_API YogiOptions : public RuleOptions<YogiOptions> {
  YogiOptions(double lr = 1e-2);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more.
  TORCH_ARG(double, lr) = 1e-2;
  typedef std::tuple<double, double> betas_t;
  /// Decay of the first moment, speed of the second. 0 or more, under 1.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  /// Added to the root of the second moment.
  TORCH_ARG(double, eps) = 1e-3;
  /// L2 penalty, added to the gradient.
  TORCH_ARG(double, weight_decay) = 0;

 public:
  static const Rule& rule();
};

/// Zaheer et al. 2018, "Adaptive methods for nonconvex optimization".
class DEMI_API Yogi : public RuleOptimizer<YogiOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
