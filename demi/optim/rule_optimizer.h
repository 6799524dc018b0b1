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
    require_unshared("save");
    torch::optim::serialize<ParamState, Options>(archive, *this);
    archive.write("taken", state_tensors().at("taken"), /*is_buffer=*/true);
    write_rule(archive, kRule);
  }
  /// Reads torch::optim's archives of SGD, Adam and AdamW too. Throws UsageError for an archive
  /// that does not fit, and then changes nothing.
  void load(torch::serialize::InputArchive& archive) override { load_archive(archive); }

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

  OptionsAccess options_access() const final {
    using Base = torch::optim::OptimizerOptions;
    OptionsAccess access;
    Options::each(static_cast<const Options&>(defaults()),
                  [&](const char* name, const auto&) { access.names.emplace_back(name); });
    access.read = [](torch::serialize::InputArchive& group) {
      auto options = std::make_unique<Options>();
      options->serialize(group);
      return options;
    };
    access.numbers = [](const Base& options) {
      StateDict numbers;
      Options::each(static_cast<const Options&>(options), [&](const char* name, const auto& value) {
        write_number(numbers, name, value);
      });
      return numbers;
    };
    access.with_numbers = [names = access.names](const Base& base, const StateDict& numbers) {
      auto options = std::make_unique<Options>(static_cast<const Options&>(base));
      StateDict left = numbers;
      Options::each(*options,
                    [&](const char* name, auto& value) { take_number(left, name, value); });
      require_no_option(left, names);
      return options;
    };
    access.assign = [](Base& to, const Base& from) {
      static_cast<Options&>(to) = static_cast<const Options&>(from);
    };
    return access;
  }
};

}  // namespace demi::optim
