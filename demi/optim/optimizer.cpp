#include "demi/optim/optimizer.h"

#include <torch/types.h>

#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "demi/core/error.h"
#include "demi/kernels/inverse_scale.h"
#include "demi/optim/rule_optimizer.h"
#include "demi/optim/saved_state.h"
#include "demi/step/layout.h"
#include "demi/step/ownership.h"
#include "demi/step/pages.h"
#include "demi/step/stepper.h"
#include "demi/tensor/dtype.h"
#include "demi/weights/overlap.h"

namespace demi::optim {
namespace {

/// A parameter as the tables know it.
struct Known {
  const at::TensorImpl* parameter;
  const torch::optim::OptimizerParamState* state;  // null: no gradient has been seen yet
};

[[noreturn]] void refuse(const char* what, const std::string& seen, const char* accepted) {
  throw UsageError({.where = "optim.Optimizer", .what = what, .seen = seen, .accepted = accepted});
}

void check_parameter(const at::Tensor& parameter) {
  if (!parameter.defined()) refuse("a parameter is undefined", "", "tensors");
  if (parameter.layout() != at::kStrided)
    refuse("a parameter is not dense", c10::str(parameter.layout()), "strided");
  const auto dtype = parameter.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && !tensor::is_16_bit(dtype))
    refuse("a parameter has a dtype that cannot be trained", c10::toString(dtype),
           "fp32, fp16, bf16, fp64");
  if (parameter.is_meta()) refuse("a parameter has no memory", "meta", "a device that has");
  if (overlaps_itself(parameter))
    refuse("elements of a parameter share memory", c10::str(parameter.strides()),
           "one place an element");
}

/// Where that can be known without waiting; a device skips the step instead (kernels/decision.h).
void check_scale(const at::Tensor& scale) {
  if (!scale.defined()) return;
  if (scale.numel() != 1 || scale.scalar_type() != at::kFloat)
    refuse("a scale is not one number", scale.toString() + " " + c10::str(scale.sizes()),
           "fp32, one element");
  if (is_asynchronous(scale.device())) return;
  const double value = *scale.const_data_ptr<float>();
  if (!kernels::is_usable(kernels::inverse_of_scale(static_cast<float>(value))))
    refuse("a scale is out of range", std::to_string(value), "positive, finite, not tiny");
}

std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> all;
  for (const auto& group : groups)
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

/// Each of them, and that none is there twice, nor another in its memory. Returns them as a set.
std::unordered_set<const at::TensorImpl*> check_parameters(const std::vector<at::Tensor>& all) {
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& parameter : all) {
    check_parameter(parameter);
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second)
      refuse("a parameter is there twice", c10::str("shape ", parameter.sizes()),
             "each parameter once, in one group");
  }
  if (const auto pair = weights::find_overlap(all))
    refuse("two parameters lie in the same memory",
           c10::str("shapes ", all[pair->first].sizes(), " and ", all[pair->second].sizes()),
           "memory of their own; tie weights by using one parameter in both places");
  return seen;
}

at::Tensor on_huge_pages(at::Tensor tensor) {
  ask_for_huge_pages(tensor);
  return tensor;
}

/// `tensor` in the layout, dtype and device of `work`; zeros where it is undefined.
void conform(at::Tensor& tensor, const at::Tensor& work, const char* name) {
  if (!tensor.defined()) {
    tensor = on_huge_pages(at::empty_like(work)).zero_();
    return;
  }
  if (tensor.sizes() != work.sizes())
    refuse("loaded state does not fit its parameter",
           std::string(name) + " of shape " + c10::str(tensor.sizes()), "the parameter's shape");
  const bool fits = tensor.strides() == work.strides() &&
                    tensor.scalar_type() == work.scalar_type() && tensor.device() == work.device();
  if (!fits) tensor = on_huge_pages(at::empty_like(work)).copy_(tensor);
}

/// The dense fp32 (or fp64) array that is updated for the parameter.
void place(Member& member) {
  const at::Tensor& parameter = member.parameter;
  const bool dense = parameter.is_non_overlapping_and_dense();
  if (tensor::is_16_bit(parameter.scalar_type())) {
    const bool made = member.state->master.defined();
    const at::Tensor layout =
        at::empty_like(parameter, parameter.options().dtype(at::kFloat).requires_grad(false));
    conform(member.state->master, layout, "master");
    if (!made) member.state->master.copy_(parameter);
    member.storage = dense ? Storage::kMaster : Storage::kScattered;
    member.work = member.state->master;
  } else if (dense || parameter.scalar_type() == at::kDouble) {
    member.state->master.reset();  // of the dtype before
    member.storage = Storage::kDirect;
    member.work = on_huge_pages(parameter.detach());
  } else {
    member.state->master.reset();
    member.storage = Storage::kScattered;
    member.work = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
  }
}

Member member_of(const at::Tensor& parameter, ParamState& state, const Stepper& stepper,
                 const kernels::Group& group) {
  const kernels::UpdateRule rule = stepper.rule();
  const at::NoGradGuard no_grad;
  Member member;
  member.parameter = parameter;
  member.state = &state;
  member.sizes = c10::DimVector(parameter.sizes());
  member.strides = c10::DimVector(parameter.strides());
  member.dtype = parameter.scalar_type();
  member.device = parameter.device();
  place(member);
  const bool counted_on_device = kernels_for(member.work, stepper.options().path).device;
  const c10::Device counter = counted_on_device ? member.work.device() : c10::Device(at::kCPU);
  state.step = state.step.defined() ? state.step.to(counter, at::kLong)
                                    : at::zeros({}, at::TensorOptions(counter).dtype(at::kLong));
  for (int k = 0; k < moments_of(rule, group); ++k) {
    // SGD's buffer starts as the first gradient it sees, also where momentum is switched on late.
    if (rule == kernels::UpdateRule::sgd && !state.moment(rule, k).defined()) state.step.zero_();
    conform(state.moment(rule, k), member.work, "a moment");
  }
  return member;
}

}  // namespace

struct Optimizer::Impl {
  Impl(kernels::UpdateRule rule, StepOptions options) : stepper(rule, options) {}

  Stepper stepper;
  std::vector<std::unique_ptr<Ownership>> owned;
  std::vector<Known> known;
  std::map<size_t, at::Tensor> rates;  // scheduled, by group: fp64, (steps), CPU
  StepResult last;
  std::shared_ptr<Optimizer> self;  // owns nothing; watch() sees it go
  Groups groups;                    // of this step; kept for its memory
};

// LibTorch 2.15 merges a group's options with the defaults for the optimizers that it knows, and
// puts the defaults in the place of those that it does not know: give the group its own back.
Optimizer::Optimizer(kernels::UpdateRule rule,
                     const std::vector<torch::optim::OptimizerParamGroup>& groups,
                     std::unique_ptr<torch::optim::OptimizerOptions> defaults, StepOptions options)
    : torch::optim::Optimizer(groups, std::move(defaults)),
      impl_(std::make_unique<Impl>(rule, options)) {
  for (size_t g = 0; g < groups.size(); ++g)
    if (groups[g].has_options()) param_groups_[g].set_options(groups[g].options().clone());
  impl_->self = std::shared_ptr<Optimizer>(this, [](Optimizer*) {});
}

Optimizer::~Optimizer() = default;

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  numbers_of(group.has_options() ? group.options() : defaults());
  std::vector<at::Tensor> all = parameters_of(param_groups_);
  all.insert(all.end(), group.params().begin(), group.params().end());
  check_parameters(all);
  torch::optim::Optimizer::add_param_group(group);
  if (group.has_options()) param_groups_.back().set_options(group.options().clone());
  adopt();
}

void Optimizer::adopt() {
  for (const auto& group : param_groups_) numbers_of(group.options());
  const std::vector<at::Tensor> wanted = parameters_of(param_groups_);
  const std::unordered_set<const at::TensorImpl*> seen = check_parameters(wanted);
  auto& owned = impl_->owned;
  std::erase_if(owned, [&](const auto& one) {
    return !seen.contains(one->parameter().unsafeGetTensorImpl());
  });
  std::unordered_set<const at::TensorImpl*> held;
  for (const auto& one : owned) held.insert(one->parameter().unsafeGetTensorImpl());
  for (const auto& parameter : wanted)
    if (!held.contains(parameter.unsafeGetTensorImpl()))
      owned.push_back(std::make_unique<Ownership>(parameter, *this,
                                                  impl_->stepper.options().low_precision_grads));
  impl_->known.clear();
}

void Optimizer::set_taken(int64_t taken) {
  impl_->stepper.set_taken(taken);
  impl_->known.clear();
}

bool Optimizer::knows_all() const {
  auto known = impl_->known.begin();
  const auto end = impl_->known.end();
  for (const auto& group : param_groups_) {
    for (const auto& parameter : group.params()) {
      if (known == end || known->parameter != parameter.unsafeGetTensorImpl()) return false;
      const auto state = state_.find(parameter.unsafeGetTensorImpl());
      if ((state == state_.end() ? nullptr : state->second.get()) != known->state) return false;
      if (!known->state && parameter.grad().defined()) return false;
      ++known;
    }
  }
  return known == end;
}

void Optimizer::build(const Groups& groups) {
  adopt();
  std::vector<Placed> placed;
  std::unordered_map<const at::TensorImpl*, Arrivals> arrivals;
  for (const auto& one : impl_->owned)
    arrivals[one->parameter().unsafeGetTensorImpl()] = one->arrivals();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    for (const auto& parameter : param_groups_[g].params()) {
      auto* key = parameter.unsafeGetTensorImpl();
      const bool has_state = state_.find(key) != state_.end();
      if (!has_state && !parameter.grad().defined()) {
        impl_->known.push_back({key, nullptr});
        continue;
      }
      if (!has_state) state_[key] = std::make_unique<ParamState>();
      auto& state = static_cast<ParamState&>(*state_[key]);
      placed.push_back(
          {member_of(parameter, state, impl_->stepper, groups.numbers[g]), static_cast<int>(g)});
      placed.back().member.arrivals = arrivals[key];
      impl_->known.push_back({key, &state});
    }
  }
  impl_->stepper.build(placed, groups);
}

void Optimizer::prepare() {
  Groups& groups = impl_->groups;
  groups.numbers.clear();
  groups.rates.clear();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    groups.numbers.push_back(numbers_of(param_groups_[g].options()));
    const auto rates = impl_->rates.find(g);
    groups.rates.push_back(rates == impl_->rates.end() ? at::Tensor() : rates->second);
  }
  if (!knows_all() || !impl_->stepper.adjust(groups)) build(groups);
  impl_->stepper.refresh();
}

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  prepare();
  Stepper& stepper = impl_->stepper;
  if (stepper.has_gradients()) stepper.step();
  impl_->last = stepper.result(this, loss);
  stepper.forget_records();
  return loss;
}

const StepResult& Optimizer::last_step() const { return impl_->last; }

at::Tensor Optimizer::unscaled_grad(const at::Tensor& parameter) {
  prepare();
  return impl_->stepper.unscaled(parameter);
}

void Optimizer::set_scale(const at::Tensor& scale, bool wide_unscaled) {
  const at::NoGradGuard no_grad;
  check_scale(scale);
  if (impl_->stepper.holds()) prepare();  // lets go what was recorded for other gradients
  impl_->stepper.set_scale(scale, wide_unscaled);
}

void Optimizer::unscale_(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  check_scale(scale);
  prepare();
  impl_->stepper.unscale(scale);
}

void Optimizer::end_look() { impl_->stepper.end_look(); }

std::weak_ptr<Optimizer> Optimizer::watch() const { return impl_->self; }

void Optimizer::measure() {
  const at::NoGradGuard no_grad;
  prepare();
  impl_->stepper.measure();
}

bool Optimizer::has_gradients() const {
  for (const auto& group : param_groups_)
    for (const auto& parameter : group.params())
      if (parameter.grad().defined()) return true;
  return false;
}

at::Tensor Optimizer::found_inf() {
  measure();
  return impl_->stepper.found_inf();
}

at::Tensor Optimizer::found_inf_under(const at::Tensor& scale, bool wide_unscaled) {
  const at::NoGradGuard no_grad;
  prepare();
  Stepper& stepper = impl_->stepper;
  if (stepper.set_scale(scale, wide_unscaled)) stepper.refresh();
  stepper.measure();
  return stepper.found_inf();
}

at::Tensor Optimizer::grad_norm() {
  measure();
  return impl_->stepper.grad_norm();
}

at::Tensor Optimizer::greatest() {
  measure();
  return impl_->stepper.greatest();
}

void Optimizer::skip_if(const at::Tensor& found_inf) {
  impl_->stepper.skip_if(found_inf.defined() ? found_inf.to(at::kFloat) : found_inf);
}

namespace {

void check_limit(const char* name, double limit) {
  if (!(limit >= 0))
    refuse((std::string(name) + " is out of range").c_str(), std::to_string(limit), "0 or more");
}

}  // namespace

bool Optimizer::clip_norm(double max_norm) {
  check_limit("max_norm", max_norm);
  const at::NoGradGuard no_grad;
  prepare();
  return impl_->stepper.clip_norm(static_cast<float>(max_norm));
}

void Optimizer::multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  prepare();
  impl_->stepper.multiply(parameters, factor);
}

void Optimizer::clip_value(const std::vector<at::Tensor>& parameters, double limit) {
  check_limit("limit", limit);
  const at::NoGradGuard no_grad;
  prepare();
  impl_->stepper.clip_value(parameters, static_cast<float>(limit));
}

void Optimizer::settle() {
  const at::NoGradGuard no_grad;
  prepare();
  impl_->stepper.settle();
}

void Optimizer::set_scheduled_rates(size_t group, const std::vector<double>& rates) {
  if (group >= param_groups_.size())
    refuse("there is no such parameter group", std::to_string(group), "its number, from 0");
  for (const double rate : rates)
    if (!(rate >= 0 && std::isfinite(rate)))
      refuse("a learning rate is out of range", std::to_string(rate), "0 or more, finite");
  if (rates.empty())
    impl_->rates.erase(group);
  else
    impl_->rates[group] = at::tensor(rates, at::kDouble);
}

double Optimizer::bytes_per_parameter() const { return impl_->stepper.bytes_per_parameter(); }

std::map<std::string, at::Tensor> Optimizer::state_tensors() const {
  std::map<std::string, at::Tensor> all{
      {"taken", at::scalar_tensor(impl_->stepper.taken(), at::kLong)}};
  size_t index = 0;
  for (const auto& group : param_groups_) {
    for (const auto& parameter : group.params()) {
      const std::string prefix = std::to_string(index++) + ".";
      const auto state = state_.find(parameter.unsafeGetTensorImpl());
      if (state == state_.end()) continue;
      for (const auto& [name, tensor] : static_cast<const ParamState&>(*state->second).tensors())
        all[prefix + name] = tensor;
    }
  }
  return all;
}

void Optimizer::load_state_tensors(const std::map<std::string, at::Tensor>& tensors) {
  const std::vector<at::Tensor> parameters = parameters_of(param_groups_);
  LoadedState loaded = read_state(tensors, impl_->stepper.rule(), parameters);
  state_.clear();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (loaded.of[i]) state_[parameters[i].unsafeGetTensorImpl()] = std::move(loaded.of[i]);
  set_taken(loaded.taken);
}

void Optimizer::load_archive(torch::serialize::InputArchive& archive,
                             const OptionsReader& options) {
  std::vector<size_t> sizes;
  for (const auto& group : param_groups_) sizes.push_back(group.params().size());
  Archived read = read_archive(archive, impl_->stepper.rule(), sizes, options);
  for (const auto& group : read.options) numbers_of(*group);
  load_state_tensors(read.tensors);
  for (size_t g = 0; g < sizes.size(); ++g)
    options.assign(param_groups_[g].options(), *read.options[g]);
}

}  // namespace demi::optim
