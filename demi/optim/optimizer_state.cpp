#include "demi/optim/optimizer_state.h"

#include <torch/types.h>

#include <cmath>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/optim/optimizer_impl.h"
#include "demi/optim/saved_state.h"
#include "demi/step/matrices.h"

namespace demi::optim {
namespace {

std::vector<torch::optim::OptimizerParamGroup> without_options(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> bare;
  for (const auto& group : groups) bare.emplace_back(group.params());
  return bare;
}

[[noreturn]] void refuse_without_rule(size_t group) {
  refuse(
      {.where = "optim.MultiOptimizer",
       .what = "a parameter group has no options, and so no rule",
       .seen = "group " + std::to_string(group),
       .accepted = "the options of a rule in each group",
       .advice = "OptimizerParamGroup(parameters, std::make_unique<demi::optim::SGDOptions>())"});
}

}  // namespace

std::unique_ptr<OptimizerOptions> first_options(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  if (groups.empty() || !groups.front().has_options()) refuse_without_rule(0);
  const OptimizerOptions& options = groups.front().options();
  return own_options(rule_of(options), options);
}

std::unique_ptr<OptimizerOptions> OptimizerState::Impl::options_of(
    const torch::optim::OptimizerParamGroup& group, const OptimizerOptions& defaults,
    size_t index) const {
  if (common_rule)
    return group.has_options() ? merged_options(*common_rule, group.options(), defaults)
                               : defaults.clone();
  if (!group.has_options()) refuse_without_rule(index);
  return own_options(rule_of(group.options()), group.options());
}

// LibTorch 2.15 merges a group's options with the defaults for the optimizers that it knows, and
// replaces them for those that it does not know: it gets the parameters alone.
OptimizerState::OptimizerState(const Rule* rule,
                               const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               const OptimizerOptions& defaults, StepOptions options,
                               const Backend* backend)
    : torch::optim::Optimizer(without_options(groups), defaults.clone()),
      impl_(std::make_unique<Impl>(rule, options, backend ? *backend : machine_backend())) {
  require_libtorch();
  for (size_t g = 0; g < groups.size(); ++g)
    param_groups_[g].set_options(impl_->options_of(groups[g], defaults, g));
}

OptimizerState::~OptimizerState() = default;

OptimizerState::OptimizerState(OptimizerState&& other) noexcept
    : torch::optim::Optimizer(std::move(other)),
      // The base has taken its own part alone.
      impl_(std::move(other.impl_)) {}  // NOLINT(bugprone-use-after-move)

OptimizerState& OptimizerState::operator=(OptimizerState&& other) noexcept {
  impl_.reset();  // first: an owner is known by its address
  torch::optim::Optimizer::operator=(std::move(other));
  impl_ = std::move(other.impl_);  // NOLINT(bugprone-use-after-move): the base took its part alone
  return *this;
}

OptimizerState::Impl& OptimizerState::impl() const {
  if (!impl_)
    refuse({.where = kOptimizer,
            .what = "this optimizer was moved from",
            .seen = "no parameters",
            .accepted = "the one it was moved to"});
  return *impl_;
}

PendingStep& OptimizerState::pending() { return *impl().pending; }

void OptimizerState::set_low_precision_grads(bool on) {
  if (!on) impl().pending->write_16_bit_gradients_as_fp32();
  impl().pending->options_.low_precision_grads = on;
  for (const auto& one : impl().owned) one->set_low_precision_grad(on);
}

bool OptimizerState::low_precision_grads() const {
  return impl().pending->options().low_precision_grads;
}

WeightMode OptimizerState::weight_mode() const { return impl().pending->options().weight_mode; }

bool OptimizerState::is_strict() const { return impl().pending->options().strict_state; }

void OptimizerState::set_scheduled_rates(size_t group, const std::vector<double>& rates) {
  if (group >= param_groups_.size())
    refuse({.where = kOptimizer,
            .what = "there is no such parameter group",
            .seen = std::to_string(group),
            .accepted = "its number, from 0"});
  for (const double rate : rates)
    if (!(rate >= 0 && std::isfinite(rate)))
      refuse({.where = kOptimizer,
              .what = "a learning rate is out of range",
              .seen = std::to_string(rate),
              .accepted = "0 or more, finite"});
  if (rates.empty())
    impl().rates.erase(group);
  else
    impl().rates[group] = at::tensor(rates, at::kDouble);
}

at::Tensor OptimizerState::scheduled_rates(size_t group) const {
  const auto found = impl().rates.find(group);
  return found == impl().rates.end() ? at::Tensor() : found->second;
}

int64_t OptimizerState::steps_taken() const { return impl().pending->taken(); }

double OptimizerState::bytes_per_parameter() const { return impl().pending->bytes_per_parameter(); }

std::vector<int64_t> OptimizerState::step_costs() const {
  constexpr double kOperationsOfAnElement = 1000;
  std::vector<int64_t> costs;
  for (const auto& group : param_groups_) {
    const Rule& rule = impl().rule_of(group.options());
    const MatrixOptions options = matrices_of(rule, group.options());
    for (const auto& parameter : group.params()) {
      costs.push_back(parameter.numel());
      if (!rule.matrices) continue;
      const double operations =
          2 * multiplications_of(parameter.sizes(), options) * static_cast<double>(options.steps);
      costs.back() += static_cast<int64_t>(operations / kOperationsOfAnElement);
    }
  }
  return costs;
}

std::map<std::string, at::Tensor> OptimizerState::state_tensors() const {
  std::map<std::string, at::Tensor> all{
      {"taken", at::scalar_tensor(impl().pending->taken(), at::kLong)}};
  size_t index = 0;
  for (const auto& group : param_groups_) {
    const Rule& rule = impl().rule_of(group.options());
    for (const auto& parameter : group.params()) {
      const std::string prefix = std::to_string(index++) + ".";
      const auto state = state_.find(parameter.unsafeGetTensorImpl());
      if (state == state_.end() || !state->second) continue;
      const auto own = own_state(*state->second, rule, parameter);
      if (!own) continue;
      for (const auto& [name, tensor] : own->tensors()) all[prefix + name] = tensor;
    }
  }
  for (const auto& [group, rates] : impl().rates)
    all["scheduled_rates." + std::to_string(group)] = rates;
  if (const at::Tensor norms = impl().pending->accepted_norms(); norms.defined())
    all[kAcceptedNorms] = norms;
  if (impl().others) all.insert(impl().others->begin(), impl().others->end());
  return all;
}

void OptimizerState::share_state(std::shared_ptr<StateShare> share) {
  impl().require_unshared("share_state");
  impl().share = std::move(share);
  size_t index = 0;
  for (const auto& group : param_groups_)
    for (const auto& parameter : group.params())
      if (!impl().holds(index++)) state_.erase(parameter.unsafeGetTensorImpl());
  impl().tracked.clear();
}

bool OptimizerState::keeps_state_of(const at::Tensor& parameter) const {
  if (!impl().share) return true;
  size_t index = 0;
  for (const auto& group : param_groups_) {
    for (const auto& one : group.params()) {
      if (one.is_same(parameter)) return impl().holds(index);
      ++index;
    }
  }
  return true;  // nobody's
}

bool OptimizerState::has_whole_state() const { return !impl().share || impl().others; }

void OptimizerState::set_others_state(std::map<std::string, at::Tensor> tensors) {
  impl().others = std::move(tensors);
}

void OptimizerState::drop_others_state() { impl().others.reset(); }

void OptimizerState::Impl::require_unshared(const char* what) const {
  if (!share) return;
  refuse({.where = kOptimizer,
          .what = "several processes share the state of this optimizer",
          .seen = what,
          .accepted = "parameter groups that are added before, torch::save of an optimizer that "
                      "keeps its whole "
                      "state, and one sharing; demi::checkpoint saves one that shares it"});
}

void OptimizerState::load_state_tensors(const std::map<std::string, at::Tensor>& tensors) {
  prepare_state(tensors)();
}

std::vector<StateDict> OptimizerState::group_numbers() const {
  std::vector<StateDict> all;
  for (const auto& group : param_groups_)
    all.push_back(to_numbers(impl().rule_of(group.options()), group.options()));
  return all;
}

Rules OptimizerState::Impl::rules(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                  bool of_parameters) const {
  Rules rules;
  for (const auto& group : groups)
    rules.insert(rules.end(), of_parameters ? group.params().size() : 1, &rule_of(group.options()));
  return rules;
}

std::function<void()> OptimizerState::prepare_state(std::map<std::string, at::Tensor> tensors,
                                                    const std::vector<StateDict>& groups) {
  const std::vector<at::Tensor> parameters = parameters_of(*this);
  std::vector<bool> held;
  for (size_t i = 0; i < parameters.size(); ++i) held.push_back(impl().holds(i));
  auto rates = take_scheduled_rates(tensors, param_groups_.size());
  const at::Tensor norms = take_accepted_norms(tensors);
  auto loaded = std::make_shared<LoadedState>(read_state(
      std::move(tensors), impl().rules(param_groups_, /*of_parameters=*/true), parameters, held));
  if (!groups.empty() && groups.size() != param_groups_.size())
    refuse({.where = kOptimizer,
            .what = "the state has another number of parameter groups",
            .seen = std::to_string(groups.size()),
            .accepted = std::to_string(param_groups_.size())});
  const Rules rules = impl().rules(param_groups_);
  std::vector<std::shared_ptr<OptimizerOptions>> options;
  for (size_t g = 0; g < groups.size(); ++g) {
    options.push_back(with_numbers(*rules[g], param_groups_[g].options(), groups[g]));
    numbers_of(*rules[g], *options.back());
  }
  std::vector<kernels::Group> numbers;  // of each parameter
  for (size_t g = 0; g < param_groups_.size(); ++g)
    numbers.insert(
        numbers.end(), param_groups_[g].params().size(),
        numbers_of(*rules[g], groups.empty() ? param_groups_[g].options() : *options[g]));
  const StepOptions& step = impl().pending->options();
  if (step.strict_state) require_own_forms(*loaded, parameters, numbers, step);
  warn_of_coding(*loaded, parameters, numbers, step.moments);
  return [=, this] {
    state_.clear();
    impl().others.reset();
    for (size_t i = 0; i < parameters.size(); ++i)
      if (loaded->of[i]) state_[parameters[i].unsafeGetTensorImpl()] = std::move(loaded->of[i]);
    impl().pending->set_taken(loaded->taken);
    impl().tracked.clear();
    impl().pending->set_accepted_norms(norms);
    for (const auto& [group, values] : rates) impl().rates[group] = values;
    for (size_t g = 0; g < options.size(); ++g)
      assign_options(*rules[g], param_groups_[g], *options[g]);
  };
}

std::string OptimizerState::rule_name() const {
  const Rule* rule = impl().common_rule;
  return rule ? rule->name : name_of(impl().rules(param_groups_));
}

void OptimizerState::save(torch::serialize::OutputArchive& archive) const {
  impl().require_unshared("save");
  write_archive(archive, impl().rules(param_groups_), param_groups_, state_tensors());
}

void OptimizerState::load(torch::serialize::InputArchive& archive) {
  const Rules rules = impl().rules(param_groups_);
  std::vector<size_t> sizes;
  for (const auto& group : param_groups_) sizes.push_back(group.params().size());
  Archived read = read_archive(archive, rules, sizes);
  for (size_t g = 0; g < sizes.size(); ++g) numbers_of(*rules[g], *read.options[g]);
  load_state_tensors(read.tensors);
  for (size_t g = 0; g < sizes.size(); ++g)
    assign_options(*rules[g], param_groups_[g], *read.options[g]);
}

}  // namespace demi::optim
