#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"
#include "demi/optim/saved_state.h"

namespace demi::optim {

/// What the optimizers share besides their step: construction and torch::save. `Options` holds the
/// hyper-parameters of a group; numbers() checks them and returns them for the kernels.
///
/// A group's options are taken by their type: demi's, LibTorch's of the same name, or none. As in
/// LibTorch 2.15, an option of a group that has the value of a fresh `Options()` was not set, and
/// is that of `defaults`.
template <class Options, kernels::UpdateRule kRule>
class RuleOptimizer : public Optimizer {
 public:
  explicit RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                         Options defaults = {}, StepOptions step = {})
      : Optimizer(kRule, taken(groups, defaults), std::make_unique<Options>(defaults), step) {
    defaults.numbers();
    adopt();
  }
  explicit RuleOptimizer(std::vector<at::Tensor> parameters, Options defaults = {},
                         StepOptions step = {})
      : RuleOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, step) {}

  void save(torch::serialize::OutputArchive& archive) const override { save_archive(archive); }
  /// Reads torch::optim's archives of SGD, Adam and AdamW too. Throws UsageError for an archive
  /// that does not fit, and then changes nothing.
  void load(torch::serialize::InputArchive& archive) override { load_archive(archive); }

 protected:
  /// On another backend than the machine's, for tests.
  RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
                StepOptions step, const Backend& backend)
      : Optimizer(kRule, taken(groups, defaults), std::make_unique<Options>(defaults), step,
                  backend) {
    defaults.numbers();
    adopt();
  }

  kernels::Group numbers_of(const torch::optim::OptimizerOptions& options) const final {
    if (const auto* mine = dynamic_cast<const Options*>(&options)) return mine->numbers();
    return own(options).numbers();  // set_options() of a group takes any
  }

  OptionsAccess options_access() const final {
    using Base = torch::optim::OptimizerOptions;
    OptionsAccess access;
    const Options& defaults = static_cast<const Options&>(this->defaults());
    Options::each([&](const char* name, const auto&) { access.names.emplace_back(name); },
                  defaults);
    access.merged = [defaults](const Base& given) {
      return std::make_unique<Options>(merged(given, defaults));
    };
    access.read = [](torch::serialize::InputArchive& group) {
      auto options = std::make_unique<Options>();
      options->serialize(group);
      return options;
    };
    access.write = [](torch::serialize::OutputArchive& group, const Base& options) {
      own(options).serialize(group);
    };
    access.numbers = [](const Base& options) {
      StateDict numbers;
      const Options read = own(options);
      Options::each(
          [&](const char* name, const auto& value) { write_number(numbers, name, value); }, read);
      return numbers;
    };
    access.with_numbers = [names = access.names](const Base& base, const StateDict& numbers) {
      auto options = std::make_unique<Options>(own(base));
      StateDict left = numbers;
      Options::each([&](const char* name, auto& value) { take_number(left, name, value); },
                    *options);
      require_no_option(left, names);
      return options;
    };
    access.assign = [](torch::optim::OptimizerParamGroup& group, const Base& options) {
      const Options& from = static_cast<const Options&>(options);
      if (auto* to = dynamic_cast<Options*>(&group.options()))
        *to = from;
      else
        group.set_options(std::make_unique<Options>(from));
    };
    return access;
  }

 private:
  static Options own(const torch::optim::OptimizerOptions& given) {
    if (const auto* mine = dynamic_cast<const Options*>(&given)) return *mine;
    if constexpr (requires { typename Options::Torch; })
      if (const auto* torchs = dynamic_cast<const typename Options::Torch*>(&given))
        return Options(*torchs);
    refuse_options(given, Options::kOptimizer, Options::kTypes);
  }

  static Options merged(const torch::optim::OptimizerOptions& given, const Options& defaults) {
    Options merged = own(given);
    const Options untouched;
    Options::each(
        [](const char*, auto& value, const auto& fresh, const auto& inherited) {
          if (value == fresh) value = inherited;
        },
        merged, untouched, defaults);
    return merged;
  }

  /// The groups with options of our type.
  static std::vector<torch::optim::OptimizerParamGroup> taken(
      const std::vector<torch::optim::OptimizerParamGroup>& groups, const Options& defaults) {
    std::vector<torch::optim::OptimizerParamGroup> taken;
    for (const auto& group : groups)
      taken.emplace_back(group.params(),
                         std::make_unique<Options>(
                             group.has_options() ? merged(group.options(), defaults) : defaults));
    return taken;
  }
};

}  // namespace demi::optim
