#include "lab/recipes/optimizers.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/sgd.h"
#include "lab/find_by_name.h"

namespace demi::recipes {
namespace {

template <class Options>
Options hyper_parameters(const Config& config) {
  Options options(config.lr);
  options.weight_decay(config.weight_decay);
  if constexpr (requires { options.nesterov(true); })
    options.momentum(config.momentum).nesterov(config.nesterov);
  return options;
}

template <class Mine, class Options>
std::unique_ptr<optim::Optimizer> make(const Config& config, const optim::DecayGroups& parameters,
                                       optim::StepOptions step) {
  const auto options = hyper_parameters<Options>(config);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(parameters.decay, std::make_unique<Options>(options));
  if (config.decay_by_rule)
    groups.emplace_back(parameters.no_decay,
                        std::make_unique<Options>(Options(options).weight_decay(0)));
  // The groups' options are whole: what they leave at its default inherits nothing.
  return std::make_unique<Mine>(groups, Options(), step);
}

template <class Theirs, class Options>
std::unique_ptr<torch::optim::Optimizer> make_torch(const Config& config,
                                                    std::vector<at::Tensor> parameters) {
  return std::make_unique<Theirs>(std::move(parameters), hyper_parameters<Options>(config));
}

template <class Mine, class Options>
OptimizerKind kind(std::string name) {
  return {.name = std::move(name), .momentum_is_optional = requires(Options o){o.nesterov(true);
}
, .usual_weight_decay = Options().weight_decay(), .make = make<Mine, Options>, .make_torch = nullptr
};  // namespace
}  // namespace demi::recipes

template <class Mine, class Options, class Theirs, class TheirOptions>
OptimizerKind kind(std::string name) {
  OptimizerKind made = kind<Mine, Options>(std::move(name));
  made.make_torch = make_torch<Theirs, TheirOptions>;
  return made;
}

}  // namespace

std::span<const OptimizerKind> optimizer_kinds() {
  namespace t = torch::optim;
  using namespace optim;
  static const std::vector<OptimizerKind> all{
      kind<SGD, SGDOptions, t::SGD, t::SGDOptions>("sgd"),
      kind<Adam, AdamOptions, t::Adam, t::AdamOptions>("adam"),
      kind<AdamW, AdamWOptions, t::AdamW, t::AdamWOptions>("adamw"),
      kind<LAMB, LAMBOptions>("lamb"),
      kind<Lion, LionOptions>("lion"),
  };
  return all;
}

const OptimizerKind& find_optimizer(std::string_view name) {
  return lab::find_by_name(optimizer_kinds(), name, "train.find_optimizer", "no such optimizer");
}

}  // namespace demi::recipes
