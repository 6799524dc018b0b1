#include "demi/optim/optimizer.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/optim/rule.h"
#include "demi/optim/saved_state.h"
#include "demi/optim/state_share.h"
#include "demi/step/backend.h"
#include "demi/step/coded_weight.h"
#include "demi/step/layout.h"
#include "demi/step/member_source.h"
#include "demi/step/ownership.h"
#include "demi/step/pending_step.h"
#include "demi/step/state_watch.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/overlap.h"

namespace demi::optim {
namespace {

/// A parameter as the tables were built for it.
struct TrackedParameter {
  const at::TensorImpl* parameter;
  const torch::optim::OptimizerParamState* state;  // null: it has had no gradient yet
  StateWatch::Range tensors = {};                  // of that state
  bool held = true;                                // false: another process keeps its state
};

constexpr auto kOptimizer = "optim.Optimizer";

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

std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups)
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

std::vector<torch::optim::OptimizerParamGroup> without_options(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> bare;
  for (const auto& group : groups) bare.emplace_back(group.params());
  return bare;
}

/// Checks each parameter, and that no two are the same or share memory. Returns them as a set.
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

}  // namespace

struct Optimizer::Impl final : MemberSource {
  Impl(Optimizer& its_optimizer, const Rule& its_rule, StepOptions options, const Backend& backend)
      : optimizer(&its_optimizer),
        rule(its_rule),
        pending(new PendingStep(rule.id, options, backend, *this)) {}

  const Groups& groups() override;
  bool is_unchanged() const override;
  std::vector<GroupedMember> members(const Groups& groups) override;
  bool has_gradients() const override;
  bool holds(size_t parameter) const { return !share || share->holds(parameter); }

  /// To the optimizer that it now belongs to.
  void move_to(Optimizer& to);

  Optimizer* optimizer;
  const Rule& rule;
  std::shared_ptr<PendingStep> pending;
  std::vector<std::unique_ptr<Ownership>> owned;
  std::vector<TrackedParameter> tracked;
  StateWatch watch;                    // of the states of those
  std::map<size_t, at::Tensor> rates;  // scheduled, by group: fp64, (steps), CPU
  std::shared_ptr<StateShare> share;   // null: this process keeps all
  std::optional<std::map<std::string, at::Tensor>> others;  // state of what others hold
  StepResult last;
  Groups step_groups;  // of this step; kept for its memory
};

// LibTorch 2.15 merges a group's options with the defaults for the optimizers that it knows, and
// replaces them for those that it does not know: it gets the parameters alone.
Optimizer::Optimizer(const Rule& rule, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     const OptimizerOptions& defaults, StepOptions options, const Backend* backend)
    : torch::optim::Optimizer(without_options(groups), defaults.clone()),
      impl_(std::make_unique<Impl>(*this, rule, options, backend ? *backend : machine_backend())) {
  require_libtorch();
  for (size_t g = 0; g < groups.size(); ++g)
    if (groups[g].has_options())
      param_groups_[g].set_options(merged_options(rule, groups[g].options(), defaults));
  if (parameters_of(groups).empty())
    refuse({.where = kOptimizer,
            .what = "there are no parameters",
            .seen = "none",
            .accepted = "one parameter or more, such as model->parameters()"});
  numbers_of(rule, defaults);
  adopt();
}

Optimizer::~Optimizer() = default;

Optimizer::Optimizer(Optimizer&& other) noexcept
    : torch::optim::Optimizer(std::move(other)),
      // The base has taken its own part alone.
      impl_(std::move(other.impl_)) {  // NOLINT(bugprone-use-after-move)
  if (impl_) impl_->move_to(*this);
}

Optimizer& Optimizer::operator=(Optimizer&& other) noexcept {
  if (this == &other) return *this;
  impl_.reset();  // first: an owner is known by its address
  torch::optim::Optimizer::operator=(std::move(other));
  impl_ = std::move(other.impl_);  // NOLINT(bugprone-use-after-move): the base took its part alone
  if (impl_) impl_->move_to(*this);
  return *this;
}

Optimizer::Impl& Optimizer::impl() const {
  if (!impl_)
    refuse({.where = kOptimizer,
            .what = "this optimizer was moved from",
            .seen = "no parameters",
            .accepted = "the one it was moved to"});
  return *impl_;
}

void Optimizer::Impl::move_to(Optimizer& to) {
  optimizer = &to;
  for (auto& one : owned) one->move_to(to);
  last = last.moved_to(&to);
}

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  require_unshared("add_param_group");
  const Rule& rule = impl().rule;
  auto options =
      group.has_options() ? merged_options(rule, group.options(), defaults()) : defaults().clone();
  numbers_of(rule, *options);
  std::vector<at::Tensor> all = parameters_of(param_groups_);
  all.insert(all.end(), group.params().begin(), group.params().end());
  check_parameters(all);
  torch::optim::Optimizer::add_param_group(torch::optim::OptimizerParamGroup(group.params()));
  param_groups_.back().set_options(std::move(options));
  adopt();
}

void Optimizer::adopt() {
  for (const auto& group : param_groups_) numbers_of(impl().rule, group.options());
  const std::vector<at::Tensor> wanted = parameters_of(param_groups_);
  const std::unordered_set<const at::TensorImpl*> seen = check_parameters(wanted);
  auto& owned = impl().owned;
  std::erase_if(owned, [&](const auto& one) {
    return !seen.contains(one->parameter().unsafeGetTensorImpl());
  });
  std::unordered_set<const at::TensorImpl*> held;
  for (const auto& one : owned) held.insert(one->parameter().unsafeGetTensorImpl());
  for (const auto& parameter : wanted)
    if (!held.contains(parameter.unsafeGetTensorImpl()))
      owned.push_back(std::make_unique<Ownership>(parameter, *this,
                                                  impl().pending->options().low_precision_grads));
  impl().tracked.clear();
  impl().watch.clear();
}

void Optimizer::set_taken(int64_t taken) {
  impl().pending->set_taken(taken);
  impl().tracked.clear();
}

const Groups& Optimizer::Impl::groups() {
  step_groups.numbers.clear();
  step_groups.rates.clear();
  for (size_t g = 0; g < optimizer->param_groups_.size(); ++g) {
    step_groups.numbers.push_back(numbers_of(rule, optimizer->param_groups_[g].options()));
    const auto scheduled = rates.find(g);
    step_groups.rates.push_back(scheduled == rates.end() ? at::Tensor() : scheduled->second);
  }
  return step_groups;
}

bool Optimizer::Impl::is_unchanged() const {
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

/// What is lost of weights that are kept in another mode than they were saved in.
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

}  // namespace

namespace {

/// Two parameters may have been given one tensor, as a count that is set for all: each step writes
/// to its own.
void give_own_memory(ParamState& state, std::unordered_set<const void*>& known) {
  for (const auto& [name, tensor] : state.tensors())
    if (tensor.layout() == at::kStrided && tensor.numel() > 0 &&
        !known.insert(tensor.const_data_ptr()).second)
      state[name] = tensor.clone();
}

}  // namespace

std::vector<GroupedMember> Optimizer::Impl::members(const Groups& groups) {
  optimizer->adopt();
  std::vector<GroupedMember> all;
  std::unordered_map<const at::TensorImpl*, Arrivals> arrivals;
  for (const auto& one : owned) arrivals[one->parameter().unsafeGetTensorImpl()] = one->arrivals();
  auto& states = optimizer->state_;
  std::unordered_set<const void*> memory;  // of states
  size_t index = 0;
  for (size_t g = 0; g < optimizer->param_groups_.size(); ++g) {
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
      all.push_back({make_member(parameter, state, rule.id, groups.numbers[g], pending->backend(),
                                 pending->options()),
                     static_cast<int>(g)});
      all.back().member.number = static_cast<std::int32_t>(index - 1);
      all.back().member.arrivals = arrivals[key];
      tracked.push_back({.parameter = key, .state = &state, .tensors = watch.add(state)});
    }
  }
  warn_of_modes(all, pending->options().weight_mode);
  return all;
}

bool Optimizer::Impl::has_gradients() const {
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

PendingStep& Optimizer::pending() { return *impl().pending; }

void Optimizer::set_low_precision_grads(bool on) {
  if (!on) impl().pending->write_16_bit_gradients_as_fp32();
  impl().pending->options_.low_precision_grads = on;
  for (const auto& one : impl().owned) one->set_low_precision_grad(on);
}

bool Optimizer::low_precision_grads() const {
  return impl().pending->options().low_precision_grads;
}

WeightMode Optimizer::weight_mode() const { return impl().pending->options().weight_mode; }

bool Optimizer::is_strict() const { return impl().pending->options().strict_state; }

at::Tensor Optimizer::unscaled_grad(const at::Tensor& parameter) {
  return pending().unscaled_grad(parameter);
}

void Optimizer::set_scheduled_rates(size_t group, const std::vector<double>& rates) {
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

at::Tensor Optimizer::scheduled_rates(size_t group) const {
  const auto found = impl().rates.find(group);
  return found == impl().rates.end() ? at::Tensor() : found->second;
}

int64_t Optimizer::steps_taken() const { return impl().pending->taken(); }

double Optimizer::bytes_per_parameter() const { return impl().pending->bytes_per_parameter(); }

std::map<std::string, at::Tensor> Optimizer::state_tensors() const {
  std::map<std::string, at::Tensor> all{
      {"taken", at::scalar_tensor(impl().pending->taken(), at::kLong)}};
  size_t index = 0;
  for (const auto& group : param_groups_) {
    for (const auto& parameter : group.params()) {
      const std::string prefix = std::to_string(index++) + ".";
      const auto state = state_.find(parameter.unsafeGetTensorImpl());
      if (state == state_.end() || !state->second) continue;
      const auto own = own_state(*state->second, impl().rule, parameter);
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

void Optimizer::share_state(std::shared_ptr<StateShare> share) {
  require_unshared("share_state");
  impl().share = std::move(share);
  size_t index = 0;
  for (const auto& group : param_groups_)
    for (const auto& parameter : group.params())
      if (!impl().holds(index++)) state_.erase(parameter.unsafeGetTensorImpl());
  impl().tracked.clear();
}

bool Optimizer::keeps_state_of(const at::Tensor& parameter) const {
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

bool Optimizer::has_whole_state() const { return !impl().share || impl().others; }

void Optimizer::set_others_state(std::map<std::string, at::Tensor> tensors) {
  impl().others = std::move(tensors);
}

void Optimizer::drop_others_state() { impl().others.reset(); }

void Optimizer::require_unshared(const char* what) const {
  if (!impl().share) return;
  refuse({.where = kOptimizer,
          .what = "several processes share the state of this optimizer",
          .seen = what,
          .accepted = "parameter groups that are added before, torch::save of an optimizer that "
                      "keeps its whole "
                      "state, and one sharing; demi::checkpoint saves one that shares it"});
}

void Optimizer::load_state_tensors(const std::map<std::string, at::Tensor>& tensors) {
  prepare_state(tensors)();
}

std::vector<StateDict> Optimizer::group_numbers() const {
  std::vector<StateDict> all;
  for (const auto& group : param_groups_) all.push_back(to_numbers(impl().rule, group.options()));
  return all;
}

std::function<void()> Optimizer::prepare_state(std::map<std::string, at::Tensor> tensors,
                                               const std::vector<StateDict>& groups) {
  const std::vector<at::Tensor> parameters = parameters_of(param_groups_);
  std::vector<bool> held;
  for (size_t i = 0; i < parameters.size(); ++i) held.push_back(impl().holds(i));
  auto rates = take_scheduled_rates(tensors, param_groups_.size());
  const at::Tensor norms = take_accepted_norms(tensors);
  auto loaded =
      std::make_shared<LoadedState>(read_state(std::move(tensors), impl().rule, parameters, held));
  if (!groups.empty() && groups.size() != param_groups_.size())
    refuse({.where = kOptimizer,
            .what = "the state has another number of parameter groups",
            .seen = std::to_string(groups.size()),
            .accepted = std::to_string(param_groups_.size())});
  const Rule& rule = impl().rule;
  std::vector<std::shared_ptr<OptimizerOptions>> options;
  for (size_t g = 0; g < groups.size(); ++g) {
    options.push_back(with_numbers(rule, param_groups_[g].options(), groups[g]));
    numbers_of(rule, *options.back());
  }
  std::vector<kernels::Group> numbers;  // of each parameter
  for (size_t g = 0; g < param_groups_.size(); ++g)
    numbers.insert(numbers.end(), param_groups_[g].params().size(),
                   numbers_of(rule, groups.empty() ? param_groups_[g].options() : *options[g]));
  const StepOptions& step = impl().pending->options();
  if (step.strict_state) require_own_forms(*loaded, rule, parameters, numbers, step);
  warn_of_coding(*loaded, rule, parameters, numbers, step.moments);
  return [=, this, &rule] {
    state_.clear();
    impl().others.reset();
    for (size_t i = 0; i < parameters.size(); ++i)
      if (loaded->of[i]) state_[parameters[i].unsafeGetTensorImpl()] = std::move(loaded->of[i]);
    set_taken(loaded->taken);
    impl().pending->set_accepted_norms(norms);
    for (const auto& [group, values] : rates) impl().rates[group] = values;
    for (size_t g = 0; g < options.size(); ++g) assign_options(rule, param_groups_[g], *options[g]);
  };
}

const char* Optimizer::rule_name() const { return impl().rule.name.c_str(); }

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  require_unshared("save");
  write_archive(archive, impl().rule, param_groups_, state_tensors());
}

void Optimizer::load(torch::serialize::InputArchive& archive) {
  const Rule& rule = impl().rule;
  std::vector<size_t> sizes;
  for (const auto& group : param_groups_) sizes.push_back(group.params().size());
  Archived read = read_archive(archive, rule, sizes);
  for (const auto& group : read.options) numbers_of(rule, *group);
  load_state_tensors(read.tensors);
  for (size_t g = 0; g < sizes.size(); ++g)
    assign_options(rule, param_groups_[g], *read.options[g]);
}

}  // namespace demi::optim
