#include "demi/optim/adagrad.h"

#include <torch/types.h>

#include "demi/optim/rule.h"

namespace demi::optim {
namespace {

Rule make_adagrad_rule() {
  Rule rule = make_rule<AdagradOptions>(
      kernels::UpdateRule::adagrad, "Adagrad",
      [](AdagradOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"lr_decay", &o.lr_decay()},
                {"weight_decay", &o.weight_decay()},
                {"initial_accumulator_value", &o.initial_accumulator_value()},
                {"eps", &o.eps()},
                {"maximize", &o.maximize()}};
      },
      [](const AdagradOptions& o) -> kernels::Group {
        require_not_negative("Adagrad", "lr_decay", o.lr_decay());
        require_not_negative("Adagrad", "initial_accumulator_value", o.initial_accumulator_value());
        return {.learning_rate = o.lr(),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .maximize = o.maximize(),
                .own = {o.lr_decay(), o.initial_accumulator_value()}};
      });
  rule.state_of_libtorch = [](const torch::optim::OptimizerParamState& given,
                              std::map<std::string, at::Tensor>& to) {
    const auto* state = dynamic_cast<const torch::optim::AdagradParamState*>(&given);
    if (!state) return false;
    to = {{"step", at::scalar_tensor(state->step(), at::kLong)}, {"sum", state->sum()}};
    return true;
  };
  return rule;
}

}  // namespace

AdagradOptions::AdagradOptions(double lr) : RuleOptions(lr) {}

AdagradOptions::AdagradOptions(const Torch& options) : RuleOptions(options) {}

const Rule& AdagradOptions::rule() {
  static const Rule rule = make_adagrad_rule();
  return rule;
}

}  // namespace demi::optim
