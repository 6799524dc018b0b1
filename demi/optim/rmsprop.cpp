#include "demi/optim/rmsprop.h"

#include <torch/types.h>

#include "demi/optim/rule.h"

namespace demi::optim {
namespace {

Rule make_rmsprop_rule() {
  Rule rule = make_rule<RMSpropOptions>(
      kernels::UpdateRule::rmsprop, "RMSprop",
      [](RMSpropOptions& o) -> OptionList {
        return {{"lr", &o.lr()},
                {"alpha", &o.alpha()},
                {"eps", &o.eps()},
                {"weight_decay", &o.weight_decay()},
                {"momentum", &o.momentum()},
                {"centered", &o.centered()},
                {"maximize", &o.maximize()}};
      },
      [](const RMSpropOptions& o) -> kernels::Group {
        require_not_negative("RMSprop", "alpha", o.alpha());
        return {.learning_rate = o.lr(),
                .momentum = o.momentum(),
                .epsilon = o.eps(),
                .weight_decay = o.weight_decay(),
                .maximize = o.maximize(),
                .own = {o.alpha(), o.centered() ? 1.0 : 0.0}};
      });
  rule.state_of_libtorch = [](const torch::optim::OptimizerParamState& given,
                              std::map<std::string, at::Tensor>& to) {
    const auto* state = dynamic_cast<const torch::optim::RMSpropParamState*>(&given);
    if (!state) return false;
    to = {{"step", at::scalar_tensor(state->step(), at::kLong)},
          {"square_avg", state->square_avg()},
          {"momentum_buffer", state->momentum_buffer()},
          {"grad_avg", state->grad_avg()}};
    return true;
  };
  return rule;
}

}  // namespace

RMSpropOptions::RMSpropOptions(double lr) : RuleOptions(lr) {}

RMSpropOptions::RMSpropOptions(const Torch& options) : RuleOptions(options) {}

const Rule& RMSpropOptions::rule() {
  static const Rule rule = make_rmsprop_rule();
  return rule;
}

}  // namespace demi::optim
