#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <vector>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"
#include "demi/optim/saved_state.h"

namespace demi::optim {

/// What the optimizers share besides their step: construction and torch::save. `Options` holds the
/// hyper-parameters of a group; numbers() checks them and returns them for the kernels.
template <class Options, kernels::UpdateRule kRule>
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
    write_rule(archive, kRule);
  }
  /// Reads torch::optim's archives of SGD, Adam and AdamW too. Throws UsageError for an archive
  /// that does not fit, and then changes nothing.
  void load(torch::serialize::InputArchive& archive) override {
    OptionsReader reader;
    Options::each(static_cast<const Options&>(defaults()),
                  [&](const char* name, const auto&) { reader.names.emplace_back(name); });
    reader.read = [](torch::serialize::InputArchive& group) {
      auto options = std::make_unique<Options>();
      options->serialize(group);
      return options;
    };
    reader.assign = [](torch::optim::OptimizerOptions& to,
                       const torch::optim::OptimizerOptions& from) {
      static_cast<Options&>(to) = static_cast<const Options&>(from);
    };
    load_archive(archive, reader);
  }

 protected:
  /// On another backend than the machine's, for tests.
  RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
                StepOptions step, const Backend& backend)
      : Optimizer(kRule, groups, std::make_unique<Options>(defaults), step, backend) {
    defaults.numbers();
    adopt();
  }

  kernels::Group numbers_of(const torch::optim::OptimizerOptions& options) const final {
    return static_cast<const Options&>(options).numbers();
  }
};

}  // namespace demi::optim
