#include "demi/scaler/grad_scaler.h"

#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

#include "demi/core/error.h"
#include "demi/core/libtorch.h"
#include "demi/graph/recording_scope.h"
#include "demi/optim/optimizer.h"
#include "demi/scaler/closure_step.h"
#include "demi/scaler/device_scale.h"
#include "demi/scaler/gradients.h"
#include "demi/scaler/inspections.h"
#include "demi/scaler/saved_state.h"
#include "demi/scaler/skip_watch.h"
#include "demi/step/backend.h"
#include "demi/step/pending_step.h"
#include "demi/step/streams.h"
#include "demi/tensor/dtype.h"

namespace demi {
namespace {

using scaler::Inspection;
using scaler::Stage;

bool has_norm_limit(const std::vector<torch::optim::Optimizer*>& optimizers) {
  return std::ranges::any_of(optimizers, [](torch::optim::Optimizer* one) {
    auto* own = dynamic_cast<optim::Optimizer*>(one);
    return own && own->pending().has_norm_limit();
  });
}

/// Ends a closure step from inside the optimizer.
struct Overflow {};

}  // namespace

struct GradScaler::Impl {
  explicit Impl(const optim::Backend& its_backend) : backend(&its_backend) {}

  const optim::Backend* backend;
  GradScalerOptions options;
  ScaleState first;  // until the device is known
  DeviceScale scale;
  scaler::Inspections inspections;
  /// Without scaling: Inspection::above of torch::optim's optimizers, for their next step.
  std::unordered_map<torch::optim::Optimizer*, at::Tensor> above;
  SkipWatch watch;

  ScaleState state() const { return scale.exists() ? scale.read() : first; }
  void set_state(const ScaleState& state) {
    first = state;
    if (scale.exists()) scale.write(state);
  }
  bool is_set(const at::Tensor& flag) const;
  bool any(const scaler::FoundInf& found) const;
  bool is_captured() const;
  void create_scale(c10::Device device);
  void require_scale(const char* where) const;
  void inspect(torch::optim::Optimizer& optimizer, Inspection& inspection, bool in_place);
  void inspect_own(optim::Optimizer& optimizer, Inspection& inspection, bool in_place);
  void inspect_foreign(torch::optim::Optimizer& optimizer, Inspection& inspection);
  void inspect_again(torch::optim::Optimizer& optimizer, Inspection& inspection);
  StepResult result(torch::optim::Optimizer& optimizer, const Inspection& inspection, bool skipped,
                    at::Tensor loss, bool for_norm = false) const;
  StepResult finish(torch::optim::Optimizer& optimizer, Inspection& inspection,
                    const at::Tensor& together);
  optim::NormPart part_of(torch::optim::Optimizer& optimizer);
  void decide_by_norm(const std::vector<torch::optim::Optimizer*>& optimizers);
  bool is_decided(torch::optim::Optimizer& optimizer);
  StepResult step_unscaled(torch::optim::Optimizer& optimizer, const LossClosure& closure);
  void advance(const scaler::FoundInf& found, const at::Tensor& amax, const at::Tensor& above);
  void warn_of_skips() {
    if (options.skip_nonfinite) watch.warn(options.warn_after_skips);
  }
  void join_recording();
};

/// Waits for the flag's device.
bool GradScaler::Impl::is_set(const at::Tensor& flag) const {
  const bool here = !backend->is_asynchronous(flag.device());
  return (here ? *flag.const_data_ptr<float>() : flag.item<float>()) != 0;
}

bool GradScaler::Impl::any(const scaler::FoundInf& found) const {
  bool overflow = false;
  for (const auto& [device, flag] : found) overflow |= is_set(flag);
  return overflow;
}

/// Whether the present work becomes part of a graph, which may outlive the scaler.
bool GradScaler::Impl::is_captured() const {
  return scale.is_on_device() && backend->is_capturing(scale.tensor().device());
}

void GradScaler::Impl::create_scale(c10::Device device) {
  const bool waits = backend->is_asynchronous(device);
  const at::Tensor like = at::empty({0}, at::TensorOptions(device).dtype(at::kFloat));
  scale.create(device, first, options, waits,
               waits ? backend->kernels_for(like, std::nullopt).device : nullptr);
}

void GradScaler::Impl::require_scale(const char* where) const {
  if (scale.exists()) return;
  refuse({.where = where,
          .what = "no scale yet, because scale(loss) has not been called",
          .advice = "call scale(loss).backward() earlier in the iteration"});
}

/// A demi optimizer's step unscales by itself; only an unscale_ that the user asks for shows in
/// .grad.
void GradScaler::Impl::inspect_own(optim::Optimizer& optimizer, Inspection& inspection,
                                   bool in_place) {
  optim::PendingStep& pending = optimizer.pending();
  inspection.stage = Stage::kUnscaled;
  inspection.in_place = in_place;
  inspection.is_own = true;
  inspection.own = pending.weak_from_this();
  if (!pending.has_gradients()) return;
  in_place ? pending.unscale_(scale.tensor()) : pending.set_scale(scale.tensor());
  const at::Tensor found = pending.found_inf();
  inspection.found[found.device()] = found;
  if (options.mode == ScaleMode::kAmax) inspection.amax = pending.greatest();
}

/// Gradients may have been written to between unscale_() and the step. What unscale_() found stays
/// found, as in PyTorch; what was spoiled since then counts too, for the step and for the scale.
/// The gradients of other optimizers are read once.
void GradScaler::Impl::inspect_again(torch::optim::Optimizer& optimizer, Inspection& inspection) {
  auto* own = dynamic_cast<optim::Optimizer*>(&optimizer);
  if (!own || inspection.found.empty() || !own->pending().has_gradients()) return;
  optim::PendingStep& pending = own->pending();
  // The optimizer has forgotten the scale if its gradients were replaced.
  const at::Tensor now = pending.found_inf_under(scale.tensor(), inspection.in_place);
  at::Tensor& seen = inspection.found[now.device()];
  const bool waits = backend->is_asynchronous(now.device());
  if (seen.defined() &&
      (waits ? seen.const_data_ptr() == now.const_data_ptr() : is_set(seen) == is_set(now)))
    return;
  seen = seen.defined() ? at::maximum(seen, now) : now;
  pending.skip_if(seen);
}

void GradScaler::Impl::inspect(torch::optim::Optimizer& optimizer, Inspection& inspection,
                               bool in_place) {
  inspections.refuse_second_division(optimizer, in_place);
  if (auto* own = dynamic_cast<optim::Optimizer*>(&optimizer))
    inspect_own(*own, inspection, in_place);
  else
    inspect_foreign(optimizer, inspection);
  inspection.gradients = InspectedGradients(optimizer, in_place);
}

void GradScaler::Impl::inspect_foreign(torch::optim::Optimizer& optimizer, Inspection& inspection) {
  const auto gradients = scaler::gradient_values(optimizer);
  const at::Tensor inverse = scale.inverse();
  if (options.mode == ScaleMode::kAmax)
    inspection.amax =
        scaler::greatest_magnitude(scaler::summed_gradient_values(optimizer)) * inverse;
  inspection.found = scaler::unscale_and_check(gradients, inverse);
  if (options.record_grad_norm)
    inspection.grad_norm = scaler::total_norm(scaler::summed_gradient_values(optimizer));
  inspection.stage = Stage::kUnscaled;
}

/// Its gradients are unscaled.
optim::NormPart GradScaler::Impl::part_of(torch::optim::Optimizer& optimizer) {
  if (auto* own = dynamic_cast<optim::Optimizer*>(&optimizer)) return own->pending().norm_part();
  const Inspection* inspection = options.enabled ? inspections.find(optimizer) : nullptr;
  at::Tensor norm = inspection ? inspection->grad_norm : at::Tensor();
  if (!norm.defined()) norm = scaler::total_norm(scaler::summed_gradient_values(optimizer));
  const at::Tensor found = inspection ? scaler::joined(inspection->found, norm.device())
                                      : norm.isfinite().logical_not().to(at::kFloat);
  return {norm, found};
}

/// All gradients were unscaled, or there is no scale.
void GradScaler::Impl::decide_by_norm(const std::vector<torch::optim::Optimizer*>& optimizers) {
  std::vector<optim::PendingStep*> limits;
  std::vector<optim::NormPart> parts;
  for (auto* one : optimizers) {
    above.erase(one);
    auto* own = dynamic_cast<optim::Optimizer*>(one);
    if (own && own->pending().has_norm_limit()) limits.push_back(&own->pending());
  }
  if (limits.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto* one : optimizers)
    if (scaler::has_gradients(*one)) parts.push_back(part_of(*one));
  if (parts.empty()) return;
  optim::NormDecision decision{optim::joint_norm(parts), {}};
  for (optim::PendingStep* one : limits) {
    const at::Tensor its = one->is_above_limit(decision.joint.norm);
    decision.above = decision.above.defined() ? at::maximum(decision.above, its) : its;
  }
  for (auto* one : optimizers) {
    if (auto* own = dynamic_cast<optim::Optimizer*>(one)) own->pending().decide_by_norm(decision);
    (options.enabled ? inspections.of(*one).above : above[one]) = decision.above;
  }
}

/// Whether decide_by_norm() has decided for the gradients that are there.
bool GradScaler::Impl::is_decided(torch::optim::Optimizer& optimizer) {
  const bool was =
      options.enabled ? inspections.of(optimizer).above.defined() : above.contains(&optimizer);
  if (!was) return false;
  auto* own = dynamic_cast<optim::Optimizer*>(&optimizer);
  return !own || own->pending().is_still_decided_by_norm();
}

/// A step without scaling.
StepResult GradScaler::Impl::step_unscaled(torch::optim::Optimizer& optimizer,
                                           const LossClosure& closure) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const auto decided = above.extract(&optimizer);
  auto* own = dynamic_cast<optim::Optimizer*>(&optimizer);
  if (!own && decided && is_set(decided.mapped()))
    return {
        &optimizer, StepResult::Numbers{.found_inf = 1, .grad_norm = kNone, .above_norm = 1}, {}};
  at::Tensor loss = optimizer.step(closure);
  if (own) return own->last_step();
  return {&optimizer, StepResult::Numbers{.grad_norm = kNone}, loss};
}

StepResult GradScaler::Impl::result(torch::optim::Optimizer& optimizer,
                                    const Inspection& inspection, bool skipped, at::Tensor loss,
                                    bool for_norm) const {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  if (!scale.is_on_device()) {
    const StepResult::Numbers numbers{
        .found_inf = skipped ? 1.0F : 0.0F,
        .grad_norm = inspection.grad_norm.defined() ? inspection.grad_norm.item<float>() : kNone,
        .scale = scale.read().scale,
        .above_norm = for_norm ? 1.0F : 0.0F};
    return {&optimizer, numbers, std::move(loss)};
  }
  const at::Tensor& s = scale.tensor();
  const at::Tensor norm = inspection.grad_norm.defined() ? inspection.grad_norm.to(s.device())
                                                         : at::full_like(s, kNone);
  const auto flag = [&](bool is_set) { return at::full_like(s, is_set ? 1 : 0); };
  return {&optimizer, at::stack({flag(skipped), norm, s, flag(for_norm)}), std::move(loss),
          optim::ordered_stream(s.device())};
}

/// `together`: the overflow flag of several optimizers, or undefined.
StepResult GradScaler::Impl::finish(torch::optim::Optimizer& optimizer, Inspection& inspection,
                                    const at::Tensor& together) {
  inspection.stage = Stage::kStepped;
  if (auto* own = dynamic_cast<optim::Optimizer*>(&optimizer)) {
    if (!options.skip_nonfinite) own->pending().take_nonfinite();
    if (together.defined()) own->pending().skip_if(together);
    own->step();
    return own->last_step();
  }
  const bool found = together.defined() ? together.item<float>() != 0 : any(inspection.found);
  const bool bad = found && options.skip_nonfinite;
  const bool above_limit = !bad && inspection.above.defined() && is_set(inspection.above);
  if (!bad && !above_limit) optimizer.step();
  return result(optimizer, inspection, bad || above_limit, {}, above_limit);
}

/// The scale rule, wherever the scale is. `above`: a step was skipped for its norm, or undefined.
void GradScaler::Impl::advance(const scaler::FoundInf& found, const at::Tensor& amax,
                               const at::Tensor& above) {
  if (scale.is_on_device()) {
    const at::Tensor flag = scaler::joined(found, scale.tensor().device());
    if (scale.is_one_launch(options)) {
      scale.advance(flag, above, watch, options);
    } else {
      const at::Tensor held = above.defined() ? above * (flag == 0) : above;
      scale.advance(flag, amax, options, held);
      watch.count(flag, scale.tensor(), held);
    }
    if (is_captured()) {
      scale.keep_for_graphs();
      watch.keep_for_graphs();
    }
  } else {
    const bool overflow = any(found);
    if (!overflow && above.defined() && is_set(above)) return;
    const float greatest = amax.defined() ? amax.item<float>() : 0;
    scale.advance(ScaleInput{.found_inf = overflow, .amax = greatest}, options);
    watch.count(overflow, scale.read().scale);
  }
  warn_of_skips();
}

/// The rule's numbers are arguments of the launch that was recorded.
void GradScaler::Impl::join_recording() {
  const auto prepare = [this, recorded = options] { return options == recorded; };
  const auto note = [this] {
    if (scale.is_one_launch(options)) watch.note_launch();
    warn_of_skips();
  };
  graph::RecordingScope::current()->add({.prepare = prepare, .note = note});
}

GradScaler::GradScaler(GradScalerOptions options) : GradScaler(options, optim::machine_backend()) {}

GradScaler::GradScaler(GradScalerOptions options, const optim::Backend& backend)
    : impl_(std::make_unique<Impl>(backend)) {
  require_libtorch();
  if (options.enabled) check(options);
  impl_->options = options;
  impl_->first = first_state(options);
}
GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!is_enabled()) return output;
  if (!output.defined())
    refuse({.where = "scaler.scale",
            .what = "an output is undefined",
            .advice = "hand over the loss, or the outputs that backward starts from"});
  auto& scale = impl_->scale;
  if (!scale.exists()) impl_->create_scale(output.device());
  if (impl_->is_captured()) scale.keep_for_graphs();
  const bool narrow = tensor::is_16_bit(output.scalar_type());
  return (narrow ? output.to(at::kFloat) : output) * scale.tensor().to(output.device());
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const auto& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  constexpr auto kWhere = "scaler.unscale_";
  impl_->require_scale(kWhere);
  Inspection& inspection = impl_->inspections.of(optimizer);
  scaler::leave_behind(optimizer, inspection, kWhere);
  if (inspection.stage == Stage::kUnscaled)
    refuse({.where = kWhere,
            .what = "unscale_() has already been called on this optimizer since the last update()",
            .advice = "call it once a step"});
  if (inspection.stage == Stage::kStepped)
    refuse({.where = kWhere,
            .what = "unscale_() is being called after step()",
            .advice = "call it between backward() and step()"});
  impl_->inspect(optimizer, inspection, /*in_place=*/true);
}

StepResult GradScaler::step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (!is_enabled()) return impl_->step_unscaled(optimizer, closure);
  const bool own = dynamic_cast<optim::Optimizer*>(&optimizer) != nullptr;
  if (closure && own) {
    const at::AutoGradMode enable_grad(true);
    const at::Tensor loss = closure();
    return step(optimizer).with_loss(loss);
  }
  if (closure) return step_with_closure(optimizer, closure);
  return std::move(step(std::vector<torch::optim::Optimizer*>{&optimizer}).front());
}

std::vector<StepResult> GradScaler::step(const std::vector<torch::optim::Optimizer*>& optimizers) {
  constexpr auto kWhere = "scaler.step";
  for (auto one = optimizers.begin(); one != optimizers.end(); ++one) {
    if (!*one)
      refuse({.where = kWhere,
              .what = "an optimizer is null",
              .advice = "name optimizers that exist"});
    if (std::find(optimizers.begin(), one, *one) != one)
      refuse({.where = kWhere,
              .what = "an optimizer is there twice",
              .advice = "name each optimizer once"});
  }
  std::vector<StepResult> results;
  if (!is_enabled()) {
    const auto is_decided = [&](auto* one) { return impl_->is_decided(*one); };
    if (optimizers.size() > 1 && !std::ranges::all_of(optimizers, is_decided))
      impl_->decide_by_norm(optimizers);
    for (auto* optimizer : optimizers) results.push_back(step(*optimizer));
    return results;
  }
  impl_->require_scale(kWhere);
  for (auto* optimizer : optimizers) {
    if (impl_->inspections.of(*optimizer).stage == Stage::kStepped)
      refuse({.where = kWhere,
              .what = "step() has already been called since the last update()",
              .advice = "call update() once a step, after all optimizers"});
  }
  at::Tensor together;
  for (auto* optimizer : optimizers) {
    Inspection& inspection = impl_->inspections.of(*optimizer);
    scaler::leave_behind(*optimizer, inspection, kWhere);
    if (inspection.stage == Stage::kReady)
      impl_->inspect(*optimizer, inspection, /*in_place=*/false);
    else
      impl_->inspect_again(*optimizer, inspection);
    if (inspection.found.empty())
      refuse({.where = kWhere,
              .what = "no Inf checks were recorded for this optimizer: none of its parameters has "
                      "a gradient",
              .advice = "call scale(loss).backward() first"});
    if (optimizers.size() == 1) continue;
    const at::Tensor found = scaler::joined(inspection.found, impl_->scale.tensor().device());
    together = together.defined() ? at::maximum(together, found) : found;
  }
  if (!std::ranges::all_of(optimizers, [&](auto* one) { return impl_->is_decided(*one); }))
    impl_->decide_by_norm(optimizers);
  for (auto* optimizer : optimizers)
    results.push_back(impl_->finish(*optimizer, impl_->inspections.of(*optimizer), together));
  return results;
}

void GradScaler::decide_by_norm(const std::vector<torch::optim::Optimizer*>& optimizers) {
  if (!is_enabled()) return impl_->decide_by_norm(optimizers);
  impl_->require_scale("scaler.decide_by_norm");
  if (!has_norm_limit(optimizers)) return;
  for (auto* optimizer : optimizers) {
    Inspection& inspection = impl_->inspections.of(*optimizer);
    scaler::leave_behind(*optimizer, inspection, "scaler.decide_by_norm");
    if (inspection.stage == Stage::kReady && scaler::has_gradients(*optimizer))
      impl_->inspect(*optimizer, inspection, /*in_place=*/false);
  }
  impl_->decide_by_norm(optimizers);
}

StepResult GradScaler::step_with_closure(torch::optim::Optimizer& optimizer,
                                         const LossClosure& closure) {
  constexpr auto kWhere = "scaler.step";
  Inspection& inspection = impl_->inspections.of(optimizer);
  if (inspection.stage == Stage::kStepped)
    refuse({.where = kWhere,
            .what = "step() has already been called since the last update()",
            .advice = "call update() once a step, after all optimizers"});
  OptimizerSnapshot before(optimizer);
  at::Tensor loss;
  bool skipped = false;
  const auto unscaled_closure = [&] {
    inspection.stage = Stage::kReady;  // each call makes new gradients
    at::Tensor value = closure();
    impl_->require_scale(kWhere);
    if (inspection.stage == Stage::kReady) impl_->inspect(optimizer, inspection, /*in_place=*/true);
    if (impl_->options.skip_nonfinite && impl_->any(inspection.found)) throw Overflow{};
    return value;
  };
  try {
    loss = optimizer.step(unscaled_closure);
  } catch (const Overflow&) {
    before.restore();
    skipped = true;
  }
  inspection.stage = Stage::kStepped;
  return impl_->result(optimizer, inspection, skipped, loss);
}

void GradScaler::update() {
  if (!is_enabled()) return;
  constexpr auto kWhere = "scaler.update";
  auto& impl = *impl_;
  impl.require_scale(kWhere);
  const scaler::Totals all = impl.inspections.totals(impl.scale.tensor().device());
  if (all.found.empty())
    refuse({.where = kWhere,
            .what = "no Inf checks were recorded prior to update",
            .advice = "call step(optimizer) first"});
  impl.advance(all.found, all.amax, all.above);
  impl.inspections.end();
  if (graph::RecordingScope::current()) impl.join_recording();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  impl_->require_scale("scaler.update");
  GradScalerOptions wanted = impl_->options;
  wanted.init_scale = new_scale;
  wanted.min_scale = 0;
  wanted.max_scale = std::numeric_limits<double>::infinity();
  check(wanted);
  ScaleState state = impl_->state();
  state.scale = static_cast<float>(new_scale);
  impl_->set_state(state);
  impl_->inspections.end();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  if (!new_scale.defined() || new_scale.numel() != 1 || new_scale.scalar_type() != at::kFloat ||
      new_scale.requires_grad())
    throw UsageError(
        {.where = "scaler.update",
         .what = "new_scale is not a scale",
         .seen = new_scale.defined() ? new_scale.toString() : std::string("undefined"),
         .accepted = "a number, or an fp32 tensor of one element that does not require grad"});
  update(new_scale.item<double>());
}

float GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0F;
  const float scale = impl_->state().scale;  // waits: what the device has counted is here now
  impl_->warn_of_skips();
  return scale;
}
int64_t GradScaler::get_growth_tracker() const {
  return is_enabled() ? impl_->state().growth_tracker : 0;
}
int64_t GradScaler::get_skipped_steps() const {
  if (!is_enabled() || !impl_->options.skip_nonfinite) return 0;
  impl_->state();  // waits: what the device has counted is here now
  return impl_->watch.latest().skips;
}
double GradScaler::get_growth_factor() const { return impl_->options.growth_factor; }
double GradScaler::get_backoff_factor() const { return impl_->options.backoff_factor; }
int64_t GradScaler::get_growth_interval() const { return impl_->options.growth_interval; }
bool GradScaler::is_enabled() const { return impl_->options.enabled; }
const GradScalerOptions& GradScaler::options() const { return impl_->options; }

namespace {

/// `options` with one change, checked before it counts.
template <typename Change>
void change(GradScalerOptions& options, const Change& apply) {
  GradScalerOptions wanted = options;
  apply(wanted);
  if (options.enabled) check(wanted);
  options = wanted;
}

}  // namespace

void GradScaler::set_growth_factor(double factor) {
  change(impl_->options, [&](auto& options) { options.growth_factor = factor; });
}
void GradScaler::set_backoff_factor(double factor) {
  change(impl_->options, [&](auto& options) { options.backoff_factor = factor; });
}
void GradScaler::set_growth_interval(int64_t interval) {
  change(impl_->options, [&](auto& options) { options.growth_interval = interval; });
}

StateDict GradScaler::state_dict() const {
  if (!is_enabled()) return {};
  return scaler::to_dict({impl_->state(), impl_->options});
}

void GradScaler::load_state_dict(const StateDict& dict) {
  if (!is_enabled()) return;
  const scaler::SavedState saved = scaler::from_dict(dict, {impl_->state(), impl_->options});
  impl_->options = saved.options;
  impl_->set_state(saved.state);
  impl_->inspections.end();
}

}  // namespace demi
