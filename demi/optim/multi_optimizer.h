#pragma once

#include <vector>

#include "demi/optim/optimizer.h"

namespace demi::optim {

/// An optimizer whose groups have different update rules: the options of each group name its rule.
/// Otherwise it is as any other of demi's: one step, one decision, one norm, one state dict.
///
///     std::vector<torch::optim::OptimizerParamGroup> groups;
///     groups.emplace_back(body->parameters(), std::make_unique<demi::optim::AdamWOptions>(1e-3));
///     groups.emplace_back(head->parameters(), std::make_unique<demi::optim::SGDOptions>(0.1));
///     demi::optim::MultiOptimizer optimizer(groups);
///
/// On CUDA each rule after the first costs one launch more a step (LAMB two); norm and decision are
/// one launch each for all. Its state loads into an optimizer with the same rule in each group; if
/// all groups have one rule, into the class of that rule, and the reverse.
class DEMI_API MultiOptimizer : public Optimizer {
 public:
  /// `groups`: each with options, demi's or LibTorch's SGDOptions, AdamOptions, AdamWOptions,
  /// RMSpropOptions, AdagradOptions. They are whole: nothing is inherited. Throws UsageError for a
  /// group without options, for options of another type, and as RuleOptimizer's constructor.
  explicit MultiOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          StepOptions step = {});

 protected:
  MultiOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, StepOptions step,
                 const Backend& backend);
};

}  // namespace demi::optim
