#include "demi/optim/optimizer.h"

#include <torch/types.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "demi/core/error.h"
#include "demi/optim/optimizer_impl.h"
#include "demi/optim/saved_state.h"
#include "demi/step/backend.h"
#include "demi/step/coded_weight.h"
#include "demi/step/layout.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/overlap.h"

namespace demi::optim {
namespace {

void check_parameter(const at::Tensor& parameter) {
  if (!parameter.defined())
    refuse({.where = kOptimizer, .what = "a parameter is undefined", .accepted = "tensors"});
  if (parameter.layout() != at::kStrided)
    refuse({.where = kOptimizer,
            .what = "a parameter is not dense",
            .seen = c10::str(parameter.layout()),
            .accepted = "strided"});
  const auto dtype = parameter.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && !tensor::is_16_bit(dtype))
    refuse({.where = kOptimizer,
            .what = "a parameter has a dtype that cannot be trained",
            .seen = c10::toString(dtype),
            .accepted = "fp32, fp16, bf16, fp64"});
  if (parameter.is_meta())
    refuse({.where = kOptimizer,
            .what = "a parameter has no memory",
            .seen = "meta",
            .accepted = "a tensor on a real device"});
  if (overlaps_itself(parameter))
    refuse({.where = kOptimizer,
            .what = "elements of a parameter share memory",
            .seen = c10::str(parameter.strides()),
            .accepted = "parameters whose elements do not overlap"});
}

}  // namespace

std::unordered_set<const at::TensorImpl*> check_parameters(const std::vector<at::Tensor>& all) {
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& parameter : all) {
    check_parameter(parameter);
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
      refuse({.where = kOptimizer,
              .what = "a parameter is there twice",
              .seen = c10::str("shape ", parameter.sizes()),
              .accepted = "each parameter once, in one group"});
  }
  if (const auto pair = weights::find_overlap(all))
    refuse(
        {.where = kOptimizer,
         .what = "two parameters lie in the same memory",
         .seen = c10::str("shapes ", all[pair->first].sizes(), " and ", all[pair->second].sizes()),
         .accepted = "memory of their own; tie weights by using one parameter in both places"});
  return seen;
}

Optimizer::Optimizer(const Rule& rule, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const torch::optim::OptimizerOptions& defaults, StepOptions options,
                     const Backend* backend)
    : OptimizerState(&rule, groups, defaults, options, backend) {
  numbers_of(rule, defaults);
  begin();
}

Optimizer::Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     StepOptions options, const Backend* backend)
    : OptimizerState(nullptr, groups, *first_options(groups), options, backend) {
  begin();
}

void Optimizer::begin() {
  if (parameters_of(*this).empty())
    refuse({.where = kOptimizer,
            .what = "there are no parameters",
            .seen = "none",
            .accepted = "one parameter or more, such as model->parameters()"});
  impl_->optimizer = this;
  impl_->adopt();
}

Optimizer::Optimizer(Optimizer&& other) noexcept : OptimizerState(std::move(other)) {
  if (impl_) impl_->move_to(*this);
}

Optimizer& Optimizer::operator=(Optimizer&& other) noexcept {
  if (this == &other) return *this;
  OptimizerState::operator=(std::move(other));
  if (impl_) impl_->move_to(*this);
  return *this;
}

namespace {

/// Throws UsageError for options out of range, and for a parameter that the rule does not take.
void check_group(const Rule& rule, const OptimizerOptions& options,
                 const std::vector<at::Tensor>& parameters) {
  numbers_of(rule, options);
  for (const at::Tensor& parameter : parameters)
    if (parameter.defined()) check_matrices(rule, options, parameter);
}

}  // namespace

void OptimizerState::Impl::move_to(optim::Optimizer& to) {
  optimizer = &to;
  for (auto& one : owned) one->move_to(to);
  last = last.moved_to(&to);
}

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  impl().require_unshared("add_param_group");
  auto options = impl().options_of(group, defaults(), param_groups_.size());
  check_group(impl().rule_of(*options), *options, group.params());
  std::vector<at::Tensor> all = parameters_of(*this);
  all.insert(all.end(), group.params().begin(), group.params().end());
  check_parameters(all);
  torch::optim::Optimizer::add_param_group(torch::optim::OptimizerParamGroup(group.params()));
  param_groups_.back().set_options(std::move(options));
  impl().adopt();
}

void OptimizerState::Impl::adopt() {
  for (const auto& group : optimizer->param_groups_)
    check_group(rule_of(group.options()), group.options(), group.params());
  const std::vector<at::Tensor> wanted = parameters_of(*optimizer);
  const std::unordered_set<const at::TensorImpl*> seen = check_parameters(wanted);
  std::erase_if(owned, [&](const auto& one) {
    return !seen.contains(one->parameter().unsafeGetTensorImpl());
  });
  std::unordered_set<const at::TensorImpl*> held;
  for (const auto& one : owned) held.insert(one->parameter().unsafeGetTensorImpl());
  for (const auto& parameter : wanted)
    if (!held.contains(parameter.unsafeGetTensorImpl()))
      owned.push_back(std::make_unique<Ownership>(parameter, *optimizer,
                                                  pending->options().low_precision_grads));
  tracked.clear();
  watch.clear();
}

const Groups& OptimizerState::Impl::groups() {
  step_groups.numbers.clear();
  step_groups.rates.clear();
  step_groups.matrices.clear();
  for (size_t g = 0; g < optimizer->param_groups_.size(); ++g) {
    const OptimizerOptions& options = optimizer->param_groups_[g].options();
    const Rule& rule = rule_of(options);
    step_groups.numbers.push_back(numbers_of(rule, options));
    const auto scheduled = rates.find(g);
    step_groups.rates.push_back(scheduled == rates.end() ? at::Tensor() : scheduled->second);
    if (!rule.matrices) continue;
    step_groups.matrices.resize(optimizer->param_groups_.size());
    step_groups.matrices[g] = matrices_of(rule, options);
  }
  return step_groups;
}

bool OptimizerState::Impl::is_unchanged() const {
  auto known = tracked.begin();
  for (const auto& group : optimizer->param_groups_) {
    for (const auto& parameter : group.params()) {
      if (known == tracked.end() || known->parameter != parameter.unsafeGetTensorImpl())
        return false;
      const auto state = optimizer->state_.find(parameter.unsafeGetTensorImpl());
      if ((state == optimizer->state_.end() ? nullptr : state->second.get()) != known->state)
        return false;
      if (known->state && !watch.is_unchanged(known->tensors, *known->state)) return false;
      if (known->held && !known->state && parameter.grad().defined()) return false;
      ++known;
    }
  }
  return known == tracked.end();
}

namespace {

/// Warns of the precision that weights lose by another mode than they were saved in.
void warn_of_modes(const std::vector<GroupedMember>& members, WeightMode mode) {
  int64_t weights = 0;
  double greatest = 0;
  WeightMode saved = mode;
  for (const auto& [member, group] : members) {
    if (!member.saved_as || !(member.coding_error > 0)) continue;
    saved = *member.saved_as;
    greatest = std::max(greatest, member.coding_error);
    ++weights;
  }
  if (weights == 0) return;
  TORCH_WARN("[optim.Optimizer] ", weights, " weights that were kept in mode ", name_of(saved),
             " are kept in ", name_of(mode), " from here on (StepOptions::weight_mode): the ",
             "greatest error of one number is ", greatest);
}

/// Two parameters may have been given one tensor, as a count that is set for all: each step writes
/// to its own.
void give_own_memory(ParamState& state, std::unordered_set<const void*>& known) {
  for (const auto& [name, tensor] : state.tensors())
    if (tensor.layout() == at::kStrided && tensor.numel() > 0 &&
        !known.insert(tensor.const_data_ptr()).second)
      state[name] = tensor.clone();
}

}  // namespace

std::vector<GroupedMember> OptimizerState::Impl::members(const Groups& groups) {
  adopt();
  std::vector<GroupedMember> all;
  std::unordered_map<const at::TensorImpl*, Arrivals> arrivals;
  for (const auto& one : owned) arrivals[one->parameter().unsafeGetTensorImpl()] = one->arrivals();
  auto& states = optimizer->state_;
  std::unordered_set<const void*> memory;  // of states
  size_t index = 0;
  for (size_t g = 0; g < optimizer->param_groups_.size(); ++g) {
    const Rule& rule = rule_of(optimizer->param_groups_[g].options());
    for (const auto& parameter : optimizer->param_groups_[g].params()) {
      auto* key = parameter.unsafeGetTensorImpl();
      if (!holds(index++)) {
        all.push_back({make_measured_member(parameter), static_cast<int>(g)});
        all.back().member.arrivals = arrivals[key];
        tracked.push_back({.parameter = key, .state = nullptr, .held = false});
        continue;
      }
      const auto found = states.find(key);
      const bool has_state = found != states.end() && found->second;
      if (!has_state && !parameter.grad().defined()) {
        tracked.push_back({.parameter = key, .state = nullptr});
        continue;
      }
      auto& held = states[key];
      if (held && !dynamic_cast<ParamState*>(held.get())) held = own_state(*held, rule, parameter);
      if (!held) held = std::make_unique<ParamState>();
      auto& state = static_cast<ParamState&>(*held);
      give_own_memory(state, memory);
      all.push_back(
          {make_member(parameter, state, groups.numbers[g], pending->backend(), pending->options()),
           static_cast<int>(g)});
      all.back().member.number = static_cast<std::int32_t>(index - 1);
      all.back().member.arrivals = arrivals[key];
      tracked.push_back({.parameter = key, .state = &state, .tensors = watch.add(state)});
    }
  }
  warn_of_modes(all, pending->options().weight_mode);
  return all;
}

bool OptimizerState::Impl::has_gradients() const {
  for (const auto& group : optimizer->param_groups_)
    for (const auto& parameter : group.params())
      if (parameter.grad().defined()) return true;
  return false;
}

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  if (impl().share) impl().share->before_step();
  impl().others.reset();
  impl().last = impl().pending->run(this, loss);
  if (impl().share) impl().share->exchange(impl().last);
  return loss;
}

const StepResult& Optimizer::last_step() const { return impl().last; }

at::Tensor Optimizer::unscaled_grad(const at::Tensor& parameter) {
  return pending().unscaled_grad(parameter);
}

}  // namespace demi::optim
