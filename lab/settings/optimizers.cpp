#include "lab/settings/optimizers.h"

#include <type_traits>

#include "demi/optim/all.h"
#include "demi/optim/multi_optimizer.h"
#include "lab/find_by_name.h"
#include "lab/settings/optimizer_options.h"

namespace demi::settings {
namespace {

template <class Options>
concept HasMomentum = requires(Options o) {
  o.momentum(0.9);
};
template <class Options>
concept HasNesterov = requires(Options o) {
  o.nesterov(true);
};
template <class Options>
concept IsLibTorchsToo = requires {
  typename Options::TorchOptimizer;
};

template <class Options>
Options hyper_parameters(const Config& config) {
  Options options(config.lr);
  options.weight_decay(config.weight_decay);
  if constexpr (HasMomentum<Options>) options.momentum(config.momentum);
  if constexpr (HasNesterov<Options>) options.nesterov(config.nesterov);
  return options;
}

template <class Mine, class Options>
std::unique_ptr<optim::Optimizer> make(const Config& config, const OptimizerParameters& parameters,
                                       optim::StepOptions step) {
  const auto options = hyper_parameters<Options>(config);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(parameters.decay, std::make_unique<Options>(options));
  if (config.decay_by_rule)
    groups.emplace_back(parameters.no_decay,
                        std::make_unique<Options>(Options(options).weight_decay(0)));
  // The groups' options are whole: options at their default inherit nothing.
  auto made = std::make_unique<Mine>(groups, Options(), step);
  set_betas(*made, config.betas);
  set_optimizer_options(*made, config.optimizer_options);
  return made;
}

/// The first group has the config's learning rate, as that of every optimizer.
std::unique_ptr<optim::Optimizer> make_muon(const Config& config,
                                            const OptimizerParameters& parameters,
                                            optim::StepOptions step) {
  using optim::AdamWOptions;
  const auto adamw = hyper_parameters<AdamWOptions>(config);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(parameters.decay, std::make_unique<AdamWOptions>(adamw));
  if (config.decay_by_rule)
    groups.emplace_back(parameters.no_decay,
                        std::make_unique<AdamWOptions>(AdamWOptions(adamw).weight_decay(0)));
  auto muon = optim::MuonOptions(config.muon_lr).weight_decay(config.weight_decay);
  if (config.momentum != 0) muon.momentum(config.momentum);
  groups.emplace_back(parameters.hidden, std::make_unique<optim::MuonOptions>(muon));
  auto made = std::make_unique<optim::MultiOptimizer>(groups, step);
  set_betas(*made, config.betas);
  set_optimizer_options(*made, config.optimizer_options);
  return made;
}

template <class Options>
std::unique_ptr<torch::optim::Optimizer> make_torch(const Config& config,
                                                    std::vector<at::Tensor> parameters) {
  return std::make_unique<typename Options::TorchOptimizer>(
      std::move(parameters), hyper_parameters<typename Options::Torch>(config));
}

template <class Mine, class Options>
OptimizerKind kind(const char* name, const char* class_name) {
  constexpr bool kTakesMatrices = std::is_same_v<Mine, optim::Muon>;
  OptimizerKind made{.name = name,
                     .class_name = class_name,
                     .momentum_is_optional = HasMomentum<Options> && !kTakesMatrices,
                     .usual_weight_decay = Options().weight_decay(),
                     .takes_matrices = kTakesMatrices,
                     .make = kTakesMatrices ? make_muon : make<Mine, Options>,
                     .make_torch = nullptr};
  if constexpr (IsLibTorchsToo<Options>) made.make_torch = make_torch<Options>;
  return made;
}

}  // namespace

// They are checked where they are set: in an optimizer of one number.
void OptimizerKind::check(const Config& config) const {
  if (config.optimizer_options.empty() && config.betas.empty()) return;
  make(config,
       {.decay = {at::zeros({1})}, .no_decay = {at::zeros({1})}, .hidden = {at::zeros({1, 1})}},
       {});
}

std::span<const OptimizerKind> optimizer_kinds() {
  static const std::vector<OptimizerKind> all{
#define DEMI_RULE_ENTRY(name, Name) kind<optim::Name, optim::Name##Options>(#name, #Name),
#include "demi/kernels/rules/entries.h"
  };
  return all;
}

const OptimizerKind& find_optimizer(std::string_view name) {
  return lab::find_by_name(optimizer_kinds(), name, "settings.find_optimizer", "no such optimizer");
}

optim::Moments find_moments(std::string_view word) {
  struct Named {
    std::string name;
    optim::Moments moments;
  };
  static const std::vector<Named> all{{"fp32", optim::Moments::fp32},
                                      {"bf16", optim::Moments::bf16},
                                      {"int8", optim::Moments::int8}};
  return lab::find_by_name(std::span<const Named>(all), word, "settings.find_moments",
                           "no such storage of moments")
      .moments;
}

optim::WeightMode find_weight_mode(std::string_view word) {
  struct Named {
    std::string name;
    optim::WeightMode mode;
  };
  static const std::vector<Named> all{{"master", optim::WeightMode::master},
                                      {"split", optim::WeightMode::split},
                                      {"split24", optim::WeightMode::split24},
                                      {"stochastic", optim::WeightMode::stochastic}};
  return lab::find_by_name(std::span<const Named>(all), word, "settings.find_weight_mode",
                           "no such mode of weights")
      .mode;
}

}  // namespace demi::settings
