#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <vector>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"

namespace demi::optim {

/// What the optimizers share besides their step: construction and torch::save. `Options` holds a
/// group's hyper-parameters and gives them, checked, as numbers().
template <class Options, kernels::Rule kRule>
class RuleOptimizer : public Optimizer {
 public:
  explicit RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                         Options defaults = {}, StepOptions step = {})
      : Optimizer(kRule, groups, std::make_unique<Options>(defaults), step) {
    defaults.numbers();
    adopt();
  }
  explicit RuleOptimizer(std::vector<at::Tensor> parameters, Options defaults = {},
                         StepOptions step = {})
      : RuleOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, step) {}

  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<ParamState, Options>(archive, *this);
    archive.write("taken", state_tensors().at("taken"), /*is_buffer=*/true);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<ParamState, Options>(archive, *this);
    at::Tensor taken;
    archive.read("taken", taken, /*is_buffer=*/true);
    set_taken(taken.item<int64_t>());
  }

 protected:
  kernels::Group numbers_of(const torch::optim::OptimizerOptions& options) const final {
    return static_cast<const Options&>(options).numbers();
  }
};

}  // namespace demi::optim
